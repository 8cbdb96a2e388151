import math
import re
from pathlib import Path
from typing import Any

import pytest
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.parameters import RendezvousParameters

from rdzv import config
from rdzv.config import Layer


def make(**options: Any) -> RendezvousParameters:
    return RendezvousParameters("etcd-v3", "node1:2379", "job-7", 2, 4, **options)


EXPECTED = make(join_timeout="60")


@pytest.mark.parametrize(
    "mapping",
    [
        {"min_nodes": 2, "max_nodes": 4, "join_timeout": "60"},
        {"min_nodes": "2", "max_nodes": "4", "options": {"join_timeout": "60"}, "local_addr": None},
        {"min": 2, "max": 4, "join_timeout": "60"},
        {"nnodes": "2:4", "join_timeout": "60"},
    ],
)
def test_a_mapping_is_read(mapping: dict[str, Any]) -> None:
    everything = {"backend": "etcd-v3", "endpoint": "node1:2379", "run_id": "job-7", **mapping}
    assert config.from_mapping(everything) == EXPECTED


def test_one_number_of_nodes_is_both() -> None:
    params = config.from_mapping({"backend": "b", "run_id": "r", "nnodes": 3})
    assert (params.min_nodes, params.max_nodes, params.endpoint) == (3, 3, "")


@pytest.mark.parametrize("name", ["min_nodes", "max_nodes", "min", "max"])
def test_the_nodes_are_given_by_one_name(name: str) -> None:
    message = f"^The mapping gives 'nnodes' and '{name}', which mean the same: leave one out.$"
    with pytest.raises(RendezvousParameterError, match=message):
        config.from_mapping({"backend": "b", "run_id": "r", "nnodes": "2:4", name: 2})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run_id": None, "min": None}, "The mapping gives no run_id, no min_nodes."),
        ({"run_id": 7}, "The mapping has 7 as run_id; text is expected: put it in quotes."),
        ({"endpoint": None}, "The mapping has None as endpoint; text is expected: put it in quotes."),
        ({"min": "two"}, "The mapping has 'two' as min_nodes; an integer is expected."),
        ({"min": True}, "The mapping has True as min_nodes; an integer is expected."),
        ({"min": 1.5}, "The mapping has 1.5 as min_nodes; an integer is expected."),
        ({"min_nodes": 2}, "The mapping gives 'min' and 'min_nodes', which mean the same: leave one out."),
        ({"max_nodes": 2}, "The mapping gives 'max' and 'max_nodes', which mean the same: leave one out."),
        ({"nnodes": "2:4"}, "The mapping gives 'nnodes' and 'min', which mean the same: leave one out."),
        ({"x": 1, "options": {"x": 2}}, "The mapping gives 'x' twice."),
        ({"options": {"run_id": "r"}}, "The mapping has 'run_id' among the options; it belongs beside them."),
        ({"options": "x=1"}, "The mapping has something else than a table of options as 'options'."),
        ({1: 2}, "The mapping has the name 1; every name must be text."),
        ({"max": 1}, "The maximum number of rendezvous nodes (1) must be greater than or equal to the minimum "
                     "number of rendezvous nodes (2)."),
    ],
)  # fmt: skip
def test_a_mapping_that_cannot_be_used_says_why(change: dict[Any, Any], message: str) -> None:
    mapping = {"backend": "b", "run_id": "r", "min": 2, "max": 4, **change}
    with pytest.raises(RendezvousParameterError, match=f"^{re.escape(message)}$"):
        config.from_mapping(mapping)


@pytest.mark.parametrize("text", ["", "two", "2:", ":4", "2:4:6", "2-4", "1:9223372036854775808"])
def test_a_malformed_number_of_nodes_names_where_it_stands(text: str) -> None:
    with pytest.raises(RendezvousParameterError, match=re.escape(f"--nnodes is '{text}'; MIN:MAX")):
        config.parse_nnodes(text, "--nnodes")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("etcd-v3://node1:2379/job-7?min=2&max=4&join_timeout=60", EXPECTED),
        ("etcd-v3://node1:2379?run_id=job-7&nnodes=2:4&join_timeout=60", EXPECTED),
        ("etcd-v3://node1:2379/job%2D7?min_nodes=2&max_nodes=4&join_timeout=60&", EXPECTED),
        (
            "etcd-v3://me:p%40s%3As%2C%23@h1:1,[::1]:2,[fe80::1%25eth0]/team/job?nnodes=1&local_addr=10.0.0.7&x=a=b+c%26",
            RendezvousParameters(
                "etcd-v3", "h1:1,[::1]:2,[fe80::1%eth0]", "team/job", 1, 1, "10.0.0.7",
                user="me", password="p@s:s,#", x="a=b+c&",
            ),
        ),
        ("b://me@h/r?nnodes=1", RendezvousParameters("b", "h", "r", 1, 1, user="me")),
        ("b://me:a%2Fb%3Fc@h/r?nnodes=1", RendezvousParameters("b", "h", "r", 1, 1, user="me", password="a/b?c")),
        ("b://h/r%40s?nnodes=1&user=me@corp", RendezvousParameters("b", "h", "r@s", 1, 1, user="me@corp")),
        ("sqlite:///tmp/a@b.db?run_id=r@s&nnodes=1", RendezvousParameters("sqlite", "/tmp/a@b.db", "r@s", 1, 1)),
        ("sqlite:///tmp/my%20jobs.db?run_id=r&nnodes=1", RendezvousParameters("sqlite", "/tmp/my jobs.db", "r", 1, 1)),
        ("sqlite:/tmp/jobs.db?run_id=r&nnodes=1", RendezvousParameters("sqlite", "/tmp/jobs.db", "r", 1, 1)),
        ("sqlite:jobs.db?run_id=r&nnodes=1", RendezvousParameters("sqlite", "jobs.db", "r", 1, 1)),
        ("sqlite:?run_id=r&nnodes=1", RendezvousParameters("sqlite", "", "r", 1, 1)),
        ("sqlite://?run_id=r&nnodes=1", RendezvousParameters("sqlite", "", "r", 1, 1)),
    ],
)  # fmt: skip
def test_a_url_is_read(url: str, expected: RendezvousParameters) -> None:
    assert config.from_url(url) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "must look like etcd-v3://"),
        ("job-7", "must look like etcd-v3://"),
        ("://h/r", "must look like etcd-v3://"),
        ("b://me:geheim#1@h/r?nnodes=1", "must look like etcd-v3://"),
        ("b://me:geheim@h?nnodes=1", "gives no run_id."),
        ("b://me:geheim@h/r?min=1", "gives no max_nodes."),
        ("b://me:geheim@h/r?node=1", "gives no nnodes, such as 2:4 or 2 (or min_nodes and max_nodes). It has 'node'"),
        ("b:///r?nnodes=1&password=geheim", "gives no run_id."),
        ("b://me:geheim@h/r?nnodes=1&password=geheim", "gives 'password' twice."),
        ("b://me:geheim@h/r?nnodes=1&run_id=s", "gives 'run_id' twice."),
        ("b://me:geheim@h/r?nnodes=1&geheim", "has a query that is not name=value"),
        ("b://me:geheim@h/r?nnodes=1&=geheim", "has a query that is not name=value"),
        ("b://me:geheim@h/r?nnodes=1&x=%ff", "percent-encoded bytes that are not UTF-8"),
        ("b://me:geheim@h/r?nnodes=many", "nnodes is 'many'"),
        ("b://me:geheim/x9@db1:2379/run?nnodes=1", "has an @ behind its first / or ?. In a user or a password write /"),
        ("b://me:12345/geheim@db1:2379/run?nnodes=1", "write / as %2F and ? as %3F"),
        ("b://me:a@geheim/x9@db1:2379/run?nnodes=1", "write / as %2F and ? as %3F"),
        ("b://me:geheim?x9@db1:2379/run?nnodes=1", "write / as %2F and ? as %3F"),
        ("b://me:geheim?x=9@db1:2379/run?nnodes=1", "write / as %2F and ? as %3F"),
        ("b://me:a@geheim?x=9@db1:2379/run?nnodes=1", "write / as %2F and ? as %3F"),
        ("b://h:2379/geheim@work?nnodes=1", "in a run id or an option write @ as %40"),
    ],
)
def test_a_url_that_cannot_be_used_says_why_and_shows_no_password(url: str, message: str) -> None:
    with pytest.raises(RendezvousParameterError, match=re.escape(message)) as caught:
        config.from_url(url)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        'backend="etcd-v3"\nendpoint="node1:2379"\nrun_id="job-7"\nmin_nodes=2\nmax_nodes=4\njoin_timeout="60"\n',
        'backend="etcd-v3"\nendpoint="node1:2379"\nrun_id="job-7"\nnnodes="2:4"\n[options]\njoin_timeout="60"\n',
    ],
)
def test_a_toml_file_is_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    assert config.from_toml(path) == EXPECTED
    assert config.from_toml(str(path)) == EXPECTED


def test_a_toml_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    with pytest.raises(RendezvousParameterError, match=r"job\.toml' is not there\.$"):
        config.from_toml(path)
    with pytest.raises(RendezvousParameterError, match=r"' cannot be read: Is a directory\.$"):
        config.from_toml(tmp_path)
    path.write_text("backend = ")
    with pytest.raises(RendezvousParameterError, match=r"job\.toml' is not TOML: Invalid value"):
        config.from_toml(path)
    path.write_bytes(b'backend = "\xff"')
    with pytest.raises(RendezvousParameterError, match=r"job\.toml' is not TOML"):
        config.from_toml(path)
    path.write_text(f"backend = {100_000 * '['}")
    with pytest.raises(RendezvousParameterError, match=r"job\.toml' .*nested"):
        config.from_toml(path)
    path.write_text("nnodes = 2")
    with pytest.raises(RendezvousParameterError, match=r"job\.toml' gives no backend, no run_id"):
        config.from_toml(path)
    path.write_text('backend = "b"\nrun_id = "r"\nnodes = "2"\njoin_timeout = 5')
    with pytest.raises(RendezvousParameterError) as refused:
        config.from_toml(path)
    assert str(refused.value) == (
        f"The file '{path}' gives no nnodes, such as 2:4 or 2 (or min_nodes and max_nodes). "
        "It has 'nodes': did you mean 'nnodes'?"
    )


@pytest.mark.parametrize("name", ["nnodes", "min", "max_nodes", "endpoint"])
def test_an_integer_that_python_cannot_write_down_is_refused(name: str, tmp_path: Path) -> None:
    path, huge = tmp_path / "job.toml", f"0x{5000 * 'f'}"
    numbers = {"nnodes": {}, "max_nodes": {"min": "1"}}.get(name, {"min": "1", "max": "1"})
    arguments = {"backend": "'b'", "run_id": "'r'", **numbers, name: huge}
    path.write_text("\n".join(f"{key} = {value}" for key, value in arguments.items()))
    with pytest.raises(RendezvousParameterError, match=r"what was given.* expected"):
        config.from_toml(path)


ENVIRONMENT = {"RDZV_BACKEND": "etcd-v3", "RDZV_ENDPOINT": "node1:2379", "RDZV_RUN_ID": "job-7"}


@pytest.mark.parametrize(
    "environment",
    [
        {"RDZV_MIN_NODES": "2", "RDZV_MAX_NODES": "4", "RDZV_OPTIONS": "join_timeout=60"},
        {"RDZV_NNODES": "2:4", "RDZV_OPTIONS": ' {"join_timeout": "60"}', "RDZV_LOCAL_ADDR": ""},
        {"RDZV_NNODES": "1:9", "RDZV_MIN_NODES": "2", "RDZV_MAX_NODES": "4", "RDZV_OPTIONS": " join_timeout = 60 "},
        {"RDZV_NNODES": "1:4", "RDZV_MIN_NODES": "2", "RDZV_MAX_NODES": "", "RDZV_OPTIONS": "join_timeout=60"},
    ],
)
def test_the_environment_is_read(environment: dict[str, str]) -> None:
    assert config.from_env({**ENVIRONMENT, **environment}) == EXPECTED


def test_the_environment_of_this_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in config.to_env(EXPECTED).items():
        monkeypatch.setenv(name, value)
    assert config.from_env() == EXPECTED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"RDZV_RUN_ID": "", "RDZV_NNODES": ""},
            "gives no RDZV_RUN_ID, no RDZV_NNODES, such as 2:4 or 2 (or RDZV_MIN_NODES and RDZV_MAX_NODES).",
        ),
        ({"RDZV_NNODES": "", "RDZV_NODES": "2"}, "It has 'RDZV_NODES': did you mean 'RDZV_NNODES'?"),
        (
            {"RDZV_RUN_ID": "", "RDZV_RUNID": "x"},
            "gives no RDZV_RUN_ID. It has 'RDZV_RUNID': did you mean 'RDZV_RUN_ID'?",
        ),
        ({"RDZV_NNODES": "two"}, "RDZV_NNODES is 'two'"),
        ({"RDZV_MIN_NODES": "two"}, "has 'two' as RDZV_MIN_NODES; an integer is expected."),
        ({"RDZV_OPTIONS": "x=1,password"}, "item 2 is neither"),
        ({"RDZV_OPTIONS": "x=1,x=2"}, "names the option 'x' twice"),
        ({"RDZV_OPTIONS": "password="}, "item 1 is neither"),
        ({"RDZV_OPTIONS": "=geheim"}, "item 1 is neither"),
        ({"RDZV_OPTIONS": "x=1,join_timeout=3; password=geheim"}, "item 2 has a semicolon before another name"),
        ({"RDZV_OPTIONS": "password=geheim,"}, "item 2 is neither"),
        ({"RDZV_OPTIONS": '{"password": "geheim"'}, "RDZV_OPTIONS begins as JSON and is not"),
        ({"RDZV_OPTIONS": '{"x": 1, "y": 2, "x": 1}'}, "RDZV_OPTIONS names 'x' twice in one JSON object."),
        ({"RDZV_OPTIONS": '{"labels": {"rack": "1", "rack": "2"}}'}, "RDZV_OPTIONS names 'rack' twice"),
        ({"RDZV_OPTIONS": f'{{"x": {21 * "["}{21 * "]"}}}'}, "RDZV_OPTIONS has JSON of more than 20 levels"),
        ({"RDZV_OPTIONS": 100_000 * '{"x":'}, "RDZV_OPTIONS has JSON of more than 20 levels"),
        ({"RDZV_OPTIONS": "run_id=r"}, "has 'run_id' among the options"),
    ],
)
def test_an_environment_that_cannot_be_used_names_the_variable(change: dict[str, str], message: str) -> None:
    with pytest.raises(RendezvousParameterError, match=re.escape(message)) as caught:
        config.from_env({**ENVIRONMENT, "RDZV_NNODES": "2", **change})
    assert "geheim" not in str(caught.value)


def test_options_in_the_environment_may_have_pairs_and_semicolons() -> None:
    given = {**ENVIRONMENT, "RDZV_NNODES": "2", "RDZV_OPTIONS": "labels=rack=1;zone=2,password=a;b"}
    assert config.from_env(given).config == {"labels": "rack=1;zone=2", "password": "a;b"}


@pytest.mark.parametrize(
    "params",
    [
        make(),
        RendezvousParameters("sqlite", "/tmp/jobs.db", "Jöb 7,=\n", 1, 1, "fe80::1%eth0"),
        make(
            text="a,b=c;{}\"' ü", number=0.5, integer=60, yes=True, nothing=None, labels={"rack": "1,2"}, seq=[1, "2"]
        ),
        make(password="p,=w", nnodes="9", min=3, options={"x": 1}, self="me", source="s"),
    ],
)
def test_parameters_survive_the_environment(params: RendezvousParameters) -> None:
    inherited = {
        "RDZV_NNODES": "8", "RDZV_OPTIONS": "x=1", "RDZV_LOCAL_ADDR": "10.0.0.9", "RDZV_ENDPOINT": "elsewhere:1",
    }  # fmt: skip
    assert config.from_env({**inherited, **config.to_env(params)}) == params


def test_a_value_without_end_would_not_survive_the_environment() -> None:
    endless: list[Any] = []
    for _ in range(100_000):
        endless = [endless]
    with pytest.raises(RendezvousParameterError, match=r"The options \(x\) cannot be passed"):
        config.to_env(make(x=endless))


@pytest.mark.parametrize("value", [(1, 2), {1: "a"}, b"bytes", math.nan, math.inf, Path("x"), {"a": ("b",)}])
def test_a_value_that_would_not_survive_the_environment_is_refused(value: Any) -> None:
    with pytest.raises(RendezvousParameterError, match=r"The options \(x\) cannot be passed") as caught:
        config.to_env(make(x=value))
    assert caught.value.__cause__ is not None


WHOLE = Layer("The file", {"backend": "b", "endpoint": "e", "run_id": "r", "nnodes": "2:4", "x": 1, "y": 1})


def test_of_several_layers_that_give_a_name_the_first_counts() -> None:
    flags = Layer("The command line", {"run_id": "flag", "min": 3, "options": {"x": 2}})
    assert config.merge(flags, WHOLE) == RendezvousParameters("b", "e", "flag", 3, 4, x=2, y=1)
    assert config.merge(WHOLE, flags) == config.merge(WHOLE) == RendezvousParameters("b", "e", "r", 2, 4, x=1, y=1)


def test_what_does_not_count_need_not_be_right() -> None:
    wrong = Layer("The file", {"backend": 1, "nnodes": "many", "local_addr": 2})
    assert config.merge(Layer("Flags", {"local_addr": "a"}), WHOLE, wrong).local_addr == "a"
    with pytest.raises(RendezvousParameterError, match=r"^The file has 2 as local_addr"):
        config.merge(WHOLE, wrong)


def test_what_is_empty_is_not_taken_from_a_layer_below() -> None:
    """As in a script whose variable is not set: another run would be closed than the one that was meant."""
    environment = config.environment(config.to_env(EXPECTED))
    flags = Layer("The command line", {"run_id": ""}, lambda name: f"--{name.replace('_', '-')}")
    with pytest.raises(RendezvousParameterError, match=r"^The command line gives no --run-id\.$"):
        config.merge(flags, *environment)
    assert config.merge(Layer("The command line", {"run_id": None}), *environment) == EXPECTED


def test_a_message_names_the_layer() -> None:
    environment = config.environment({"RDZV_MIN_NODES": "two", "RDZV_OPTIONS": "x=1"})
    with pytest.raises(RendezvousParameterError, match=r"^The environment has 'two' as RDZV_MIN_NODES"):
        config.merge(Layer("Flags", {"backend": "b"}), *environment)
    with pytest.raises(RendezvousParameterError, match=r"^Flags gives no run_id, no nnodes"):
        config.merge(Layer("Flags", {"backend": "b"}), *config.environment({}))


@pytest.mark.parametrize("upper", ["password", "password_file"])
@pytest.mark.parametrize("lower", ["password", "password_file"])
def test_a_secret_and_its_file_are_one_thing(upper: str, lower: str) -> None:
    flags, below = Layer("Flags", {upper: "mine"}), Layer("The environment", {lower: "theirs", "user_file": "u"})
    merged = config.merge(flags, below, WHOLE, secrets=["password"])
    assert merged.config == {upper: "mine", "user_file": "u", "x": 1, "y": 1}
