"""Checks requests against the discovery document of Compute Engine: each line of the input is one, with its call, method, path, query
and body. Paths, parameters and bodies must be what the document has, down to the types of their values.
"""

import json
import pathlib
import re
import sys

import googleapiclient.discovery_cache

HERE = pathlib.Path(googleapiclient.discovery_cache.__file__).parent
DOCUMENT = json.loads((HERE / "documents" / "compute.v1.json").read_text())


def check(schema, value, path):
    """Whether a value is what a schema has."""
    if "$ref" in schema:
        schema = DOCUMENT["schemas"][schema["$ref"]]
    kind = schema["type"]
    if kind == "object":
        assert isinstance(value, dict), f"{path} is {value!r}"
        properties = schema.get("properties", {})
        for name, inner in value.items():
            if name not in properties:
                assert "additionalProperties" in schema, f"{path} has no {name}"
            check(properties.get(name) or schema["additionalProperties"], inner, f"{path}.{name}")
    elif kind == "array":
        assert isinstance(value, list), f"{path} is {value!r}"
        for inner in value:
            check(schema["items"], inner, f"{path}[]")
    elif kind == "boolean":
        assert isinstance(value, bool), f"{path} is {value!r}"
    elif kind in ("integer", "number"):
        assert isinstance(value, int) and not isinstance(value, bool), f"{path} is {value!r}"
    else:
        assert kind == "string" and isinstance(value, str), f"{path} is {value!r}"
        assert "enum" not in schema or value in schema["enum"], f"{path} is {value}"
        assert "pattern" not in schema or re.fullmatch(schema["pattern"], value), f"{path} is {value}"
        assert "int64" not in schema.get("format", "") or re.fullmatch(r"-?\d+", value), f"{path} is {value}"


def check_text(schema, text, path):
    """The same of a value in a path or a query, which is a text always."""
    if schema["type"] == "boolean":
        value = {"true": True, "false": False}[text]
    else:
        value = int(text) if schema["type"] == "integer" else text
    check(schema, value, path)


def check_request(sent):
    resource, method = sent["call"].split(".")
    known = DOCUMENT["resources"][resource]["methods"][method]
    assert sent["method"] == known["httpMethod"], sent["method"]
    parameters = known["parameters"]
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", known["path"])
    found = re.fullmatch(pattern, sent["path"])
    assert found, f"{sent['path']} is not {known['path']}"
    named = {**found.groupdict(), **sent["query"]}
    for name, text in named.items():
        where = "path" if name in found.groupdict() else "query"
        assert name in parameters and parameters[name]["location"] == where, f"{sent['call']} has no {name}"
        check_text(parameters[name], text, f"{sent['call']} {name}")
    missing = {name for name, schema in parameters.items() if schema.get("required")} - set(named)
    assert not missing, f"{sent['call']} needs {missing}"
    assert ("request" in known) == (sent["body"] is not None), f"{sent['call']} has the body {sent['body']}"
    if "request" in known:
        check(known["request"], sent["body"], sent["call"])


if __name__ == "__main__":
    count = 0
    for line in sys.stdin:
        check_request(json.loads(line))
        count += 1
    print(count)
