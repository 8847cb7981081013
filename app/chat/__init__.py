"""Chat over WebSocket: frames, sessions, and the route."""
