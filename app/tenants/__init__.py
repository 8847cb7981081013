"""Who is asking: tenants, their keys and their quotas."""
