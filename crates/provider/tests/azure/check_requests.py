"""Checks requests against the model of Azure's own client: each line of the input is one, with its call, method, path, query and body.
Methods and paths must be those that the client would send, and bodies must be what the types of its models have.
"""

import enum
import functools
import inspect
import json
import sys
import types
import typing

from azure.mgmt.compute import models
from azure.mgmt.compute.operations import _operations as operations

BODIES = {
    "disks.createOrUpdate": models.Disk,
    "disks.update": models.DiskUpdate,
    "virtualMachines.attachDetachDataDisks": models.AttachDetachDataDisksRequest,
}
REQUESTS = {
    "disks.get": operations.build_disks_get_request,
    "disks.list": operations.build_disks_list_by_resource_group_request,
    "disks.createOrUpdate": operations.build_disks_create_or_update_request,
    "disks.update": operations.build_disks_update_request,
    "disks.delete": operations.build_disks_delete_request,
    "virtualMachines.get": operations.build_virtual_machines_get_request,
    "virtualMachines.attachDetachDataDisks": operations.build_virtual_machines_attach_detach_data_disks_request,
}
# What is answered when a change is accepted, and is in no model.
STATUSES = {"diskOperations.get", "operations.get"}


@functools.cache
def fields(model):
    """The members of a model by the names that are sent: their types, and whether they are told alone."""
    members = model({})._attr_to_rest_field
    hints = [item for kind in reversed(model.__mro__) for item in inspect.get_annotations(kind).items() if item[0] in members]
    return {members[name]._rest_name: (hint, members[name]._visibility == ["read"]) for name, hint in hints}


def alternatives(hint):
    """The types that a value may have."""
    if isinstance(hint, typing.ForwardRef):
        hint = hint.__forward_arg__
    if isinstance(hint, str):
        hint = getattr(models, hint.removeprefix("_models."))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [inner for part in typing.get_args(hint) for inner in alternatives(part)]
    return [hint]


def check(hint, value, path, is_told):
    """Whether a value is what a type has; `is_told`: it was answered, and not sent."""
    kinds = alternatives(hint)
    if value is None:
        assert type(None) in kinds, f"{path} is missing"
        return
    kinds = [kind for kind in kinds if kind is not type(None)]
    enums = [kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, enum.Enum)]
    if enums:
        assert value in [member.value for kind in enums for member in kind], f"{path} is {value!r}"
        return
    kind = kinds[0]
    origin = typing.get_origin(kind)
    if origin is list:
        assert isinstance(value, list), f"{path} is {value!r}"
        for inner in value:
            check(typing.get_args(kind)[0], inner, f"{path}[]", is_told)
    elif origin is dict:
        assert isinstance(value, dict), f"{path} is {value!r}"
        for key, inner in value.items():
            check(typing.get_args(kind)[1], inner, f"{path}.{key}", is_told)
    elif inspect.isclass(kind) and issubclass(kind, models._models._Model):
        assert isinstance(value, dict), f"{path} is {value!r}"
        known = fields(kind)
        for name, inner in value.items():
            assert name in known, f"{path} has no {name}"
            assert is_told or not known[name][1], f"{path}.{name} is told alone"
            check(known[name][0], inner, f"{path}.{name}", is_told)
        if not is_told:
            needed = {name for name, (inner, is_alone) in known.items() if not is_alone and type(None) not in alternatives(inner)}
            assert needed <= set(value), f"{path} lacks {needed - set(value)}"
    elif kind in (int, float, bool):
        is_right = isinstance(value, kind) if kind is bool else isinstance(value, (int, kind)) and not isinstance(value, bool)
        assert is_right, f"{path} is {value!r}"
    else:
        # Times are texts.
        assert isinstance(value, str), f"{path} is {value!r}"


def check_request(sent):
    call, path, query = sent["call"], sent["path"], sent["query"]
    if call in STATUSES:
        assert sent["method"] == "GET" and sent["body"] is None and "api-version" in query, sent
        return
    parts = path.split("/")
    named = {"subscription_id": parts[2], "resource_group_name": parts[4], "api_version": query["api-version"]}
    if "disk" in call and len(parts) > 8:
        named["disk_name"] = parts[8]
    if call.startswith("virtualMachines"):
        named["vm_name"] = parts[8]
    wanted = REQUESTS[call](**named)
    assert wanted.method == sent["method"], f"{call} is {wanted.method}"
    url, _, wanted_query = wanted.url.partition("?")
    assert url == path, f"{path} is not {url}"
    # The rest of a list's next page is the service's own.
    own = {name: value for name, value in query.items() if name != "$skiptoken"}
    assert wanted_query == "&".join(f"{name}={value}" for name, value in own.items()), f"{call} has {query}"
    assert (call in BODIES) == (sent["body"] is not None), f"{call} has the body {sent['body']}"
    if call in BODIES:
        check(BODIES[call], sent["body"], call, is_told=False)


if __name__ == "__main__":
    count = 0
    for line in sys.stdin:
        check_request(json.loads(line))
        count += 1
    print(count)
