"""The tenants file: what it may say, and that each problem is named with its line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.tenants.entries import LIMITS
from app.tenants.file import LARGEST_BYTES, TenantsFileError, parse_tenants, read_tenants
from app.tenants.keys import key_hash, new_key
from app.tenants.model import Limits, Tenant, Tenants

A = key_hash("the key of acme")
B = key_hash("another key of acme")
C = key_hash("the key of ops")

EVERY_FIELD = f"""\
# every field of the contract
defaults: {{weight: 3, class: batch, models: [base], limits: {{queued: 20, running: 6}}}}
tenants:
  - id: acme
    keys: [{A}, "{B}"]
    weight: 2
    class: interactive
    models: [base, adapter-a]
    limits: {{queued: 200, running: 32, connections: 500, wait_seconds: 20, request_seconds: 600,
             requests_per_minute: 600, tokens_per_minute: 200_000, output_tokens: 1024}}
  - {{id: ops, keys: [{C}], admin: true}}
"""


def parse(text: str) -> Tenants:
    return parse_tenants(text.encode(), "tenants.yaml")


def problems(text: str | bytes) -> list[str]:
    raw = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(TenantsFileError) as caught:
        parse_tenants(raw, "tenants.yaml")
    return caught.value.problems


def one(fields: str) -> str:
    """A file of one tenant with these fields, on line 2."""
    return f"tenants:\n  - {{id: acme, keys: [], {fields}}}\n"


def test_every_field_of_the_contract_is_read():
    tenants = parse(EVERY_FIELD)
    assert tenants.by_id["acme"] == Tenant(
        id="acme",
        weight=2,
        work_class="interactive",
        models=frozenset({"base", "adapter-a"}),
        limits=Limits(
            queued=200,
            running=32,
            connections=500,
            wait_seconds=20,
            request_seconds=600,
            requests_per_minute=600,
            tokens_per_minute=200_000,
            output_tokens=1024,
        ),
    )
    assert tenants.by_key == {
        A: tenants.by_id["acme"],
        B: tenants.by_id["acme"],
        C: tenants.by_id["ops"],
    }


def test_what_a_tenant_does_not_say_the_defaults_say():
    assert parse(EVERY_FIELD).by_id["ops"] == Tenant(
        id="ops",
        weight=3,
        work_class="batch",
        models=frozenset({"base"}),
        limits=Limits(queued=20, running=6),
        admin=True,
    )


def test_limits_are_merged_one_by_one():
    text = """
defaults: {limits: {queued: 7, tokens_per_minute: 1000}}
tenants: [{id: acme, keys: [], limits: {running: 3, tokens_per_minute: 5}}]
"""
    limits = parse(text).by_id["acme"].limits
    assert limits == Limits(queued=7, running=3, tokens_per_minute=5)


def test_nothing_is_no_limit_even_where_the_defaults_have_one():
    text = """
defaults: {limits: {queued: 7, tokens_per_minute: 1000}}
tenants: [{id: acme, keys: [], limits: {queued: null, tokens_per_minute: }}]
"""
    limits = parse(text).by_id["acme"].limits
    assert limits == Limits(queued=None, running=64, tokens_per_minute=None)


def test_every_limit_of_the_model_can_be_set():
    assert set(LIMITS) == set(Limits.__slots__)


def test_the_line_of_key_new_fits_into_the_file():
    key = new_key()
    text = f"tenants:\n  - id: acme\n    keys: [{key_hash(key)}]\n"
    assert parse(text).by_key[key_hash(key)].id == "acme"


def test_a_hash_may_be_written_in_capitals():
    assert A in parse(f"tenants: [{{id: a, keys: [{A.upper().replace('SHA', 'sha')}]}}]").by_key


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("wieght: 2", "'wieght' is no field of a tenant; did you mean 'weight'?"),
        ("limits: {runing: 2}", "'runing' is no field of limits; did you mean 'running'?"),
        ("weight: 1, weight: 2", "'weight' stands here again, first in line 2"),
        ("weight: -1", "weight must not be negative"),
        ("weight: .nan", "weight must be a number, not '.nan'"),
        ("weight: .inf", "weight must be a number, not '.inf'"),
        ("weight: 1e-300", "weight must be 0 (background) or from 1e-06 to 1e+06"),
        ("weight: true", "weight must be a number, not 'true'"),
        ('weight: "2"', "weight must be a number, not the text '2'"),
        ("weight: ", "weight must be a number, not nothing"),
        ("class: fast", "class must be interactive or batch, not 'fast'"),
        ("admin: 1", "admin must be true or false, not '1'"),
        ("models: []", "models is empty: leave it out for every model"),
        ("models: base", "models must be a list, not 'base'"),
        ("models: [1]", 'models is no text unless it is quoted: write "1"'),
        ("limits: 3", "limits must be fields (name: value), not '3'"),
        ("limits: {queued: -1}", "queued must be at least 0"),
        ("limits: {queued: yes}", "queued must be a whole number, not 'yes'"),
        ("limits: {queued: 1.5}", "queued must be a whole number, not '1.5'"),
        ("limits: {queued: 010}", "queued must be a whole number, not '010'"),
        ("limits: {running: 0}", "running must be at least 1"),
        ("limits: {request_seconds: 0}", "request_seconds must be more than 0"),
        ("limits: {wait_seconds: -0.5}", "wait_seconds must not be negative"),
        ("limits: {wait_seconds: 1e13}", "wait_seconds must be at most 1000000000000"),
        ("limits: {requests_per_minute: 0}", "requests_per_minute must be at least 1"),
        ("limits: {tokens_per_minute: 9999999999999}", "must be at most 1000000000000"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(fields, problem):
    (line,) = problems(one(fields))
    assert line.startswith("tenants.yaml:2: ")
    assert line.endswith(problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "tenants.yaml:1: is empty"),
        ("# nothing\n---\n", "tenants.yaml:1: is empty"),
        ("tenants: []", "tenants.yaml:1: tenants is empty"),
        ("\ntenants:\n", "tenants.yaml:2: tenants is empty"),
        ("defaults: {}", "tenants.yaml:1: tenants is missing"),
        ("- id: acme", "tenants.yaml:1: the file must be fields (name: value), not a list"),
        ("\ntenants: {id: a}", "tenants.yaml:2: tenants must be a list, not fields"),
        ("tenants: [7]", "tenants.yaml:1: a tenant must be fields (name: value), not '7'"),
        ("default: {}\n" + one("weight: 1"), "'default' is no field of the file; did you mean"),
        ("defaults: {admin: true}\n" + one("weight: 1"), "'admin' is no field of defaults"),
        ("tenants:\n- {keys: []}", "tenants.yaml:2: a tenant without id"),
        ("tenants:\n- {id: a}", "tenants.yaml:2: a tenant without keys: say `keys: []`"),
        ("tenants:\n- {id: unknown, keys: []}", "take another"),
        ("tenants:\n- {id: a b, keys: []}", "id 'a b' is not 1 to 64 of A-Z a-z 0-9 . _ -"),
        (f"tenants:\n- {{id: {'x' * 65}, keys: []}}", "is not 1 to 64 of"),
        ("tenants:\n- {id: no, keys: []}", 'id is no text unless it is quoted: write "no"'),
        ("tenants:\n- {id: 42, keys: []}", 'id is no text unless it is quoted: write "42"'),
        (
            "tenants:\n- {id: a, keys: []}\n- {id: a, keys: []}",
            "tenants.yaml:3: id 'a' is already taken in line 2",
        ),
        ("tenants: [", "this is no YAML"),
        ("a: &a [1]\ntenants: *a", "tenants.yaml:2: aliases (*name) are not read"),
        ("tenants: !!python/name:os.system []", "tenants.yaml:1: tags (!name) are not read"),
        ("tenants:\n- {id: !!str a, keys: []}", "tenants.yaml:2: tags (!name) are not read"),
        ("tenants: []\n---\ntenants: []", "tenants.yaml:2: a second document begins here"),
        ("tenants: {[a]: b}", "a field's name is one word"),
        ("[" * 1000, "nested deeper than any field of a tenant"),
        (b"tenants:\n- {id: \xe9}", "tenants.yaml:2: is not UTF-8"),
        (b"tenants:\n- {id: \x07}", "tenants.yaml:2: a character that YAML does not allow"),
    ],
)
def test_a_wrong_file_is_refused_with_the_line(text, problem):
    (line,) = problems(text)
    assert problem in line


def test_all_problems_are_listed_at_once_in_the_order_of_their_lines():
    text = """\
defaults: {weight: x}
tenants:
  - id: unknown
    keys: [abc]
    limits:
      queued: -1
      runing: 1
  - id: b
    keys: []
    class: fast
"""
    numbers = [int(line.split(":")[1]) for line in problems(text)]
    assert numbers == [1, 3, 4, 6, 7, 10]


def test_a_long_list_of_problems_is_cut():
    listed = problems("tenants:\n" + "- {id: a, keys: []}\n" * 1000)
    assert len(listed) == 101
    assert listed[-1] == "and 899 more problems"


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("fg_" + "k" * 43, id="a key"),
        pytest.param("sha256:" + "a" * 63, id="a digit short"),
        pytest.param("sha256:" + "g" * 64, id="no hex digits"),
        pytest.param("a" * 64, id="no prefix"),
        pytest.param("md5:" + "a" * 64, id="another hash"),
        pytest.param('""', id="empty"),
        pytest.param("[]", id="a list"),
        pytest.param("", id="nothing"),
    ],
)
def test_whatever_is_no_hash_is_refused_with_the_command_that_makes_one(key):
    (line,) = problems(f"tenants:\n- {{id: acme, keys: [{key or 'null'}]}}")
    assert line.startswith("tenants.yaml:2: keys: ")
    assert "sha256sum" in line
    assert "python -m app key new" in line


@pytest.mark.parametrize("where", ["keys: [{}]", "keys: {}", "keys: [], class: {}", "{}: 1"])
def test_no_problem_shows_a_key(where):
    key = new_key()
    for line in problems("tenants:\n- {id: acme, " + where.format(key) + "}"):
        assert key[:20] not in line


def test_the_hash_of_an_unset_variable_is_no_key():
    (line,) = problems(f"tenants: [{{id: a, keys: ['{key_hash('')}']}}]")
    assert "the SHA-256 of nothing" in line


def test_a_key_of_two_tenants_is_refused_naming_the_first():
    text = f"tenants:\n- {{id: a, keys: ['{A}']}}\n- {{id: b, keys: ['{C}', '{A}']}}\n"
    (line,) = problems(text)
    assert line == "tenants.yaml:3: keys: used by tenant a already, in line 2"
    (line,) = problems(f"tenants: [{{id: a, keys: ['{A}', '{A}']}}]")
    assert line == "tenants.yaml:1: keys: used here already, in line 1"


def test_a_bomb_of_aliases_is_refused_and_not_unfolded():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    (line,) = problems("\n".join(lines))
    assert "aliases" in line


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "tenants.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + EVERY_FIELD.replace("\n", "\r\n").encode())
    assert read_tenants(path) == parse(EVERY_FIELD)


def test_a_file_that_cannot_be_read_is_one_problem(tmp_path):
    def read(name: str) -> list[str]:
        with pytest.raises(TenantsFileError) as caught:
            read_tenants(tmp_path / name)
        return caught.value.problems

    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as large:
        large.truncate(LARGEST_BYTES + 1)
    assert read("none") == ["none: cannot be read: No such file or directory"]
    assert read("pipe") == ["pipe: is no file"]
    assert read(".") == [f"{tmp_path.name}: is no file"]
    assert read("large") == [f"large: is larger than {LARGEST_BYTES} bytes"]


def test_tenants_do_not_show_their_hashes():
    assert A not in repr(parse(EVERY_FIELD))


def test_what_changed_and_what_is_gone_can_be_told():
    old = parse("tenants: [{id: a, keys: []}, {id: b, keys: []}, {id: c, keys: []}]")
    text = "tenants: [{id: a, keys: []}, {id: b, keys: [], weight: 2}, {id: d, keys: []}]"
    new = parse(text)
    assert [tenant.id for tenant in new.changed_since(old)] == ["b", "d"]
    assert new.gone_since(old) == ["c"]


MARKS = list("[]{}:,-?|>#%@`\n \r\x00\x85\u2028é")
WORDS = st.sampled_from(
    [
        *("tenants", "defaults", "id", "keys", "limits", "weight", "class", "models", "admin"),
        *(A, C, "a", "b", "1", "-1", "0", "1.5", "1e9999", "1_0", "1__0", "9" * 5000),
        *("null", "~", "yes", ".inf", ".NaN", "interactive", "&x", "*x", "!!str", "!x", "---"),
        *("'", '"', "\t", "<<", *MARKS),
    ]
)
STRUCTURES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=25,
)


def problems_of_any(raw: bytes) -> list[str]:
    """No problem where it is a good file; any other exception than the one passes through."""
    try:
        parse_tenants(raw, "t.yaml")
    except TenantsFileError as error:
        return error.problems or ["an error without a problem"]
    return []


@settings(deadline=None)
@given(st.binary(max_size=200) | st.lists(WORDS, max_size=40).map(lambda ws: " ".join(ws).encode()))
@example(b"a: !<tag:yaml.org,2002:%0A> b")
@example(b"tenants: [{id: ")
@example(b"\xff\xfe")
@example("tenants:\n- \ud7ff\ue000\ufeff".encode())
def test_any_text_is_tenants_or_problems_of_one_line_each(raw):
    for line in problems_of_any(raw):
        assert line.startswith("t.yaml:")
        assert len(line.splitlines()) == 1


@settings(deadline=None)
@given(STRUCTURES | st.fixed_dictionaries({"tenants": STRUCTURES, "defaults": STRUCTURES}))
def test_any_structure_is_tenants_or_problems_of_one_line_each(structure):
    for line in problems_of_any(yaml.safe_dump(structure).encode()):
        assert line.startswith("t.yaml:")
        assert len(line.splitlines()) == 1


COUNTS = st.none() | st.integers(1, 10**9)
SECONDS = st.none() | st.floats(0.001, 1e6)
LIMITS_GIVEN = st.fixed_dictionaries(
    {},
    optional={name: SECONDS if name.endswith("_seconds") else COUNTS for name in Limits.__slots__},
)


@st.composite
def written_tenants(draw):
    """A file's text, and the tenants it must give."""
    ids = draw(st.lists(st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,9}", fullmatch=True), unique=True))
    ids = [name for name in ids if name != "unknown"] or ["acme"]
    shared = draw(LIMITS_GIVEN)
    entries: list[dict[str, object]] = []
    expected: dict[str, Tenant] = {}
    for number, name in enumerate(ids):
        limits = draw(LIMITS_GIVEN)
        weight = draw(st.just(0) | st.floats(0.001, 1000))
        models = draw(st.none() | st.sets(st.sampled_from("abc"), min_size=1))
        batch, admin = draw(st.booleans()), draw(st.booleans())
        hashes = [key_hash(f"{number}/{count}") for count in range(draw(st.integers(0, 3)))]
        entry = {"id": name, "keys": hashes, "weight": weight, "limits": limits, "admin": admin}
        entry |= {"class": "batch"} if batch else {}
        entry |= {"models": sorted(models)} if models else {}
        entries.append(entry)
        tenant = Tenant(
            id=name,
            weight=weight,
            work_class="batch" if batch else "interactive",
            models=frozenset(models) if models else None,
            limits=Limits(**{**shared, **limits}),
            admin=admin,
        )
        expected |= dict.fromkeys(hashes, tenant)
    flow = draw(st.sampled_from([True, False, None]))
    written = {"defaults": {"limits": shared}, "tenants": entries}
    return yaml.safe_dump(written, default_flow_style=flow), expected


@settings(deadline=None)
@given(written_tenants())
def test_what_was_written_is_what_is_read(written):
    text, expected = written
    assert parse(text).by_key == expected


def test_a_path_names_the_file_in_its_problems(tmp_path: Path):
    path = tmp_path / "customers.yml"
    path.write_text("tenants:\n")
    with pytest.raises(TenantsFileError, match=r"^customers.yml:1: tenants is empty"):
        read_tenants(path)
