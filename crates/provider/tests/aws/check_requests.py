"""Checks requests against botocore's model of EC2: each line of the input is one, with its action and its parameters.

The parameters are read back into those of the model, checked by its types, and written again by botocore: what it writes
must be what was sent.
"""

import json
import sys

import botocore.session
from botocore.serialize import create_serializer
from botocore.validate import ParamValidator


def wire_name(member, shape):
    """The name of a member as EC2's protocol writes it."""
    name = shape.serialization.get("queryName")
    if name:
        return name
    name = shape.serialization.get("name", member)
    return name[0].upper() + name[1:]


def read(shape, path, parameters):
    """The value whose parameters begin with a path; each parameter that belongs to it is taken out."""
    if shape.type_name == "structure":
        value = {}
        for member, inner in shape.members.items():
            name = f"{path}.{wire_name(member, inner)}".lstrip(".")
            if any(key == name or key.startswith(name + ".") for key in parameters):
                value[member] = read(inner, name, parameters)
        return value
    if shape.type_name == "list":
        items = []
        while any(key == f"{path}.{len(items) + 1}" or key.startswith(f"{path}.{len(items) + 1}.") for key in parameters):
            items.append(read(shape.member, f"{path}.{len(items) + 1}", parameters))
        return items
    text = parameters.pop(path)
    if shape.type_name in ("integer", "long"):
        return int(text)
    if shape.type_name == "boolean":
        return {"true": True, "false": False}[text]
    if shape.type_name == "string":
        assert not shape.enum or text in shape.enum, f"{path} is {text}, none of {shape.enum}"
        return text
    raise AssertionError(f"{path} is a {shape.type_name}")


def main():
    model = botocore.session.get_session().get_service_model("ec2")
    serializer = create_serializer(model.metadata["protocol"], include_validation=True)
    count = 0
    for line in sys.stdin:
        sent = json.loads(line)
        operation = model.operation_model(sent["action"])
        parameters = dict(sent["parameters"])
        value = read(operation.input_shape, "", parameters)
        assert not parameters, f"{sent['action']} has no {sorted(parameters)}"
        report = ParamValidator().validate(value, operation.input_shape)
        assert not report.has_errors(), f"{sent['action']}: {report.generate_report()}"
        written = {name: str(text) for name, text in serializer.serialize_to_request(value, operation)["body"].items()}
        expected = {"Action": sent["action"], "Version": model.api_version, **sent["parameters"]}
        assert written == expected, f"{written} is written for {expected}"
        count += 1
    print(count)


main()
