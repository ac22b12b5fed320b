"""Google's own client against the fake: a life of a disk, and what Compute Engine refuses. Each answer is checked by the discovery
document, down to members that it does not have.

Arguments: the URL of the fake, a project, a zone and an instance.
"""

import os
import sys
import time
import uuid

url, project, zone, instance = sys.argv[1:]
for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("GOOGLE_")]:
    del os.environ[name]

import google.api_core.exceptions as refusals  # noqa: E402
from google.auth.credentials import AnonymousCredentials  # noqa: E402
from google.cloud import compute_v1  # noqa: E402

from check_requests import check  # noqa: E402

answers = 0
SCHEMAS = {
    "compute#disk": "Disk",
    "compute#diskList": "DiskList",
    "compute#operation": "Operation",
    "compute#operationList": "OperationList",
}


def client(kind):
    transport = kind.get_transport_class("rest")(
        host=url.removeprefix("http://"), url_scheme="http", credentials=AnonymousCredentials()
    )
    # Answers are checked before the client reads them, as it leaves out what it does not know.
    send = transport._session.send

    def checked(request, **options):
        global answers
        answer = send(request, **options)
        if answer.ok:
            body = answer.json()
            check({"$ref": SCHEMAS[body["kind"]]}, body, body["kind"])
        else:
            error = answer.json()["error"]
            assert error["code"] == answer.status_code and error["errors"][0]["reason"] and error["message"], error
        answers += 1
        return answer

    transport._session.send = checked
    return kind(transport=transport)


disks, instances = client(compute_v1.DisksClient), client(compute_v1.InstancesClient)
operations = client(compute_v1.ZoneOperationsClient)
place = {"project": project, "zone": zone}


def ended(operation):
    """Waits for an operation, as the client has it by its name."""
    for _ in range(600):
        found = operations.get(operation=operation.name, **place)
        if found.status == compute_v1.Operation.Status.DONE:
            return found
        found = operations.wait(operation=operation.name, **place)
        if found.status == compute_v1.Operation.Status.DONE:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{operation.name} does not end")


def refused(kind, words, call, **arguments):
    try:
        call(**arguments)
    except kind as error:
        assert words in str(error), error
        return
    raise AssertionError(f"{call} is not refused")


def request():
    return str(uuid.uuid4())


name, owner = f"disk-{uuid.uuid4()}", f"owner-{uuid.uuid4()}"
wanted = compute_v1.Disk(
    name=name, size_gb=10, type_=f"projects/{project}/zones/{zone}/diskTypes/pd-ssd", labels={"surgetank-owner": owner}
)
refused(refusals.NotFound, "was not found", disks.get, disk=name, **place)
first = request()
operation = disks.insert(request=compute_v1.InsertDiskRequest(disk_resource=wanted, request_id=first, **place))
again = disks.insert(request=compute_v1.InsertDiskRequest(disk_resource=wanted, request_id=first, **place))
assert operation.name == again.name, "a request is carried out once"
refused(refusals.Conflict, "already exists", disks.insert, disk_resource=wanted, **place)
refused(
    refusals.BadRequest,
    "requestId",
    disks.insert,
    request=compute_v1.InsertDiskRequest(disk_resource=wanted, request_id=str(uuid.UUID(int=0)), **place),
)
assert first in [found.client_operation_id for found in operations.list(**place)]
pending = operations.list(request=compute_v1.ListZoneOperationsRequest(filter="status != DONE", **place))
assert all(found.status != compute_v1.Operation.Status.DONE for found in pending)
assert not ended(operation).error.errors
disk = disks.get(disk=name, **place)
assert (disk.status, disk.size_gb, disk.type_.rsplit("/")[-1], dict(disk.labels)) == (
    "READY", 10, "pd-ssd", {"surgetank-owner": owner}), disk

source = compute_v1.AttachedDisk(source=f"projects/{project}/zones/{zone}/disks/{name}", device_name=name, auto_delete=False)
refused(refusals.NotFound, "instances/none", instances.attach_disk, instance="none", attached_disk_resource=source, **place)
refused(refusals.BadRequest, "No attached disk", instances.detach_disk, instance=instance, device_name=name, **place)
operation = instances.attach_disk(instance=instance, attached_disk_resource=source, **place)
refused(refusals.BadRequest, "already being used", instances.attach_disk, instance=instance, attached_disk_resource=source, **place)
ended(operation)
disk = disks.get(disk=name, **place)
assert [user.rsplit("/")[-1] for user in disk.users] == [instance], disk
refused(refusals.BadRequest, "already being used", disks.delete, disk=name, **place)


def label(labels, fingerprint):
    wanted = compute_v1.ZoneSetLabelsRequest(labels=labels, label_fingerprint=fingerprint)
    return disks.set_labels(resource=name, zone_set_labels_request_resource=wanted, **place)


before = disk.label_fingerprint
ended(label({"surgetank-owner": owner, "dirty": "e"}, before))
refused(refusals.PreconditionFailed, "fingerprint", label, labels={}, fingerprint=before)
disk = disks.get(disk=name, **place)
assert dict(disk.labels) == {"surgetank-owner": owner, "dirty": "e"} and disk.label_fingerprint != before, disk
refused(refusals.BadRequest, "labels", label, labels={"A": "x"}, fingerprint=disk.label_fingerprint)

resize = compute_v1.DisksResizeRequest(size_gb=12)
ended(disks.resize(disk=name, disks_resize_request_resource=resize, **place))
assert disks.get(disk=name, **place).size_gb == 12
refused(refusals.BadRequest, "sizeGb", disks.resize, disk=name, disks_resize_request_resource=resize, **place)

others = [f"{name[:40]}-{number}" for number in range(6)]
for other in others:
    wanted.name = other
    ended(disks.insert(disk_resource=wanted, **place))
listed = disks.list(
    request=compute_v1.ListDisksRequest(filter=f'labels.surgetank-owner = "{owner}"', max_results=2, **place)
)
pages = [list(page.items) for page in listed.pages]
assert [len(page) for page in pages] == [2, 2, 2, 1], pages
assert {disk.name for page in pages for disk in page} == {name, *others}

ended(instances.detach_disk(instance=instance, device_name=name, **place))
for gone in [name, *others]:
    ended(disks.delete(disk=gone, **place))
    refused(refusals.NotFound, "was not found", disks.get, disk=gone, **place)
print(answers)
