"""Azure's own client against the fake: a life of a disk, and what Azure refuses. Each answer is checked by the client's models, down to
members that they do not have.

Arguments: the URL of the fake, a subscription, a resource group, a machine and a region.
"""

import os
import sys
import uuid

url, subscription, group, machine, location = sys.argv[1:]
for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("AZURE_")]:
    del os.environ[name]

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError  # noqa: E402
from azure.core.pipeline.policies import SansIOHTTPPolicy  # noqa: E402
from azure.core.pipeline.transport import RequestsTransport  # noqa: E402
from azure.mgmt.compute import ComputeManagementClient, models  # noqa: E402

from check_requests import check  # noqa: E402

answers = 0


class Checked(RequestsTransport):
    """Answers are checked before the client reads them, as it leaves out what it does not know."""

    def send(self, request, **options):
        global answers
        answer = super().send(request, **options)
        answer.read()
        answers += 1
        path = request.url.partition("?")[0].removeprefix(url)
        body = answer.json() if answer.content else None
        if answer.status_code >= 400:
            assert body["error"]["code"] and body["error"]["message"], body
            check(models.CloudError, body, "error", is_told=True)
        elif "/locations/" in path and "status" in (body or {}):
            assert set(body) <= {"name", "status", "startTime", "endTime", "error"}, body
        elif body is None:
            assert answer.status_code in (202, 204), answer
        elif path.endswith("/disks"):
            for disk in body["value"]:
                check(models.Disk, disk, "disk", is_told=True)
        elif "/locations/" in path:
            check(models.StorageProfile, body, "profile", is_told=True)
        else:
            kind = models.VirtualMachine if "/virtualMachines/" in path else models.Disk
            check(kind, body, kind.__name__, is_told=True)
        return answer


client = ComputeManagementClient(
    object(), subscription, base_url=url, authentication_policy=SansIOHTTPPolicy(), transport=Checked(), retry_total=0,
    polling_interval=0.05,
)
disks, machines = client.disks, client.virtual_machines


def refused(kind, words, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        assert words in str(error), error
        return
    raise AssertionError(f"{call} is not refused")


def wanted(**changes):
    return models.Disk(
        location=location, zones=["1"], sku=models.DiskSku(name="Premium_LRS"), tags={"surgetank:owner": owner},
        properties=models.DiskProperties(
            **{"creation_data": models.CreationData(create_option="Empty"), "disk_size_gb": 10, **changes}
        ),
    )


name, owner = f"disk-{uuid.uuid4()}", f"owner-{uuid.uuid4()}"
refused(ResourceNotFoundError, "was not found", disks.get, group, name)
refused(HttpResponseError, "diskSizeGB", disks.begin_create_or_update, group, name, wanted(disk_size_gb=0))
refused(HttpResponseError, "diskIOPSReadWrite", disks.begin_create_or_update, group, name, wanted(disk_iops_read_write=5000))
refused(ResourceNotFoundError, "Resource group", disks.get, "none", name)
made = disks.begin_create_or_update(group, name, wanted()).result()
assert (made.name, made.disk_size_gb, made.sku.name, made.tags) == (name, 10, "Premium_LRS", {"surgetank:owner": owner}), made
assert (made.provisioning_state, made.disk_state, made.managed_by) == ("Succeeded", "Unattached", None), made
again = disks.begin_create_or_update(group, name, wanted()).result()
assert again.unique_id == made.unique_id, "the same name is the same disk"

disk_id = made.id
attach = {"dataDisksToAttach": [{"diskId": disk_id, "lun": 5, "caching": "None", "deleteOption": "Detach"}]}
detach = {"dataDisksToDetach": [{"diskId": disk_id}]}
refused(ResourceNotFoundError, "was not found", machines.begin_attach_detach_data_disks, group, "none", attach)
refused(HttpResponseError, "not attached", machines.begin_attach_detach_data_disks, group, machine, detach)
poller = machines.begin_attach_detach_data_disks(group, machine, attach)
refused(ResourceExistsError, "concurrent request", machines.begin_attach_detach_data_disks, group, machine, attach)
assert machines.get(group, machine).provisioning_state == "Updating"
profile = poller.result()
assert [(disk.lun, disk.name, disk.to_be_detached) for disk in profile.data_disks] == [(5, name, False)], profile
here = machines.get(group, machine)
assert here.provisioning_state == "Succeeded" and here.zones == ["1"], here
assert disks.get(group, name).managed_by.lower() == here.id.lower()
refused(ResourceExistsError, "already owned", machines.begin_attach_detach_data_disks, group, machine, attach)
refused(ResourceExistsError, "is attached to VM", disks.begin_delete, group, name)

updated = disks.begin_update(group, name, models.DiskUpdate(tags={"dirty": "e"})).result()
assert updated.tags == {"dirty": "e"}, "all of them are replaced"
refused(HttpResponseError, "tags", disks.begin_update, group, name, models.DiskUpdate(tags={"a/b": "x"}))
larger = models.DiskUpdate(properties=models.DiskUpdateProperties(disk_size_gb=12))
assert disks.begin_update(group, name, larger).result().disk_size_gb == 12
refused(HttpResponseError, "does not shrink", disks.begin_update, group, name, larger)

others = [f"{name}-{number}" for number in range(4)]
for other in others:
    disks.begin_create_or_update(group, other, wanted()).result()
pages = [[disk.name for disk in page] for page in disks.list_by_resource_group(group).by_page()]
assert [len(page) for page in pages] == [2, 2, 1] and {disk for page in pages for disk in page} == {name, *others}, pages

machines.begin_attach_detach_data_disks(group, machine, detach).result()
assert disks.get(group, name).disk_state == "Unattached"
for gone in [name, *others]:
    disks.begin_delete(group, gone).result()
    refused(ResourceNotFoundError, "was not found", disks.get, group, gone)
disks.begin_delete(group, name).result()
print(answers)
