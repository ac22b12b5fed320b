"""AWS's own client against the fake: a life of a volume, and what EC2 refuses. Each reply is checked against botocore's model,
down to elements that it does not have.

Arguments: the URL of EC2 and of the metadata service, from which the credentials come; a region, an instance, a zone.
"""

import os
import sys
import time
import uuid
from xml.etree import ElementTree

url, region, instance, zone = sys.argv[1:]
for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
    del os.environ[name]
os.environ.update(
    AWS_EC2_METADATA_SERVICE_ENDPOINT=url,
    AWS_EC2_METADATA_V1_DISABLED="true",
    AWS_CONFIG_FILE="/nonexistent",
    AWS_SHARED_CREDENTIALS_FILE="/nonexistent",
)

import boto3  # noqa: E402
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402

LOOKS_MAX = 600
replies = 0


def local(tag):
    return tag.rsplit("}", 1)[-1]


def check(shape, element, path):
    """Whether an element is what the model has there."""
    if shape.type_name == "structure":
        members = {inner.serialization.get("name", name): inner for name, inner in shape.members.items()}
        for child in element:
            name = local(child.tag)
            assert name in members, f"{path} has no {name}"
            check(members[name], child, f"{path}.{name}")
    elif shape.type_name == "list":
        for child in element:
            assert local(child.tag) == "item", f"{path} is a list of items, not of {child.tag}"
            check(shape.member, child, f"{path}[]")
    else:
        assert len(element) == 0, f"{path} is a {shape.type_name}"
        text = element.text or ""
        if shape.type_name in ("integer", "long"):
            int(text)
        elif shape.type_name == "boolean":
            assert text in ("true", "false"), f"{path} is {text}"
        elif shape.type_name == "string" and shape.enum:
            assert text in shape.enum, f"{path} is {text}, none of {shape.enum}"


def check_reply(operation_model, response_dict, **_):
    """Called before botocore reads a reply."""
    global replies
    replies += 1
    if response_dict["status_code"] != 200:
        return
    root = ElementTree.fromstring(response_dict["body"])
    assert local(root.tag) == operation_model.name + "Response", root.tag
    for child in list(root):
        # The protocol's own, in no shape; what DeleteVolume and tags return has none either.
        if local(child.tag) in ("requestId", "return"):
            root.remove(child)
    if operation_model.output_shape is not None:
        check(operation_model.output_shape, root, operation_model.name)
    else:
        assert len(root) == 0, f"{operation_model.name} answers nothing"


ec2 = boto3.Session(region_name=region).client(
    "ec2", endpoint_url=url, config=Config(retries={"total_max_attempts": 1})
)
ec2.meta.events.register("before-parse.ec2.*", check_reply)


def refused(code, call, **parameters):
    try:
        call(**parameters)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error
        assert error.response["Error"]["Message"] and error.response["ResponseMetadata"]["RequestId"], error.response
        return
    raise AssertionError(f"{code} is expected")


def describe(volume):
    [found] = ec2.describe_volumes(VolumeIds=[volume])["Volumes"]
    return found


def reaches(volume, state, attachment=None):
    for _ in range(LOOKS_MAX):
        found = describe(volume)
        attachments = [at["State"] for at in found["Attachments"]]
        if found["State"] == state and attachments == ([attachment] if attachment else []):
            return found
        time.sleep(0.02)
    raise AssertionError(f"{volume} does not become {state}: {found}")


[reservation] = ec2.describe_instances(InstanceIds=[instance])["Reservations"]
assert reservation["Instances"][0]["Placement"]["AvailabilityZone"] == zone

owner = uuid.uuid4().hex
wanted = {
    "AvailabilityZone": zone,
    "Size": 10,
    "VolumeType": "gp3",
    "Iops": 4000,
    "Throughput": 500,
    "Encrypted": True,
    "ClientToken": uuid.uuid4().hex,
    "TagSpecifications": [
        {"ResourceType": "volume", "Tags": [{"Key": "owner", "Value": owner}, {"Key": "odd", "Value": "<a & 'b'>\n\"\u00e4\""}]}
    ],
}
refused("DryRunOperation", ec2.create_volume, **wanted, DryRun=True)
made = ec2.create_volume(**wanted)
volume = made["VolumeId"]
assert made["State"] == "creating" and made["Encrypted"] and made["CreateTime"].year > 2000, made
assert ec2.create_volume(**wanted)["VolumeId"] == volume, "a token makes one volume"
refused("IdempotentParameterMismatch", ec2.create_volume, **{**wanted, "Size": 11})
refused("InvalidParameterValue", ec2.create_volume, AvailabilityZone=zone, Size=0, VolumeType="gp3")
refused("InvalidZone.NotFound", ec2.create_volume, AvailabilityZone="x", Size=1, VolumeType="gp3")
refused("MissingParameter", ec2.create_volume, AvailabilityZone=zone, Size=10, VolumeType="io2")
refused("InvalidVolume.NotFound", ec2.describe_volumes, VolumeIds=["vol-0123456789abcdef0"])
refused("InvalidParameterValue", ec2.describe_volumes, VolumeIds=["vol-none"])

found = reaches(volume, "available")
tags = {tag["Key"]: tag["Value"] for tag in found["Tags"]}
assert tags == {"owner": owner, "odd": "<a & 'b'>\n\"\u00e4\""}, tags
assert (found["Size"], found["Iops"], found["Throughput"], found["VolumeType"]) == (10, 4000, 500, "gp3"), found

refused("IncorrectState", ec2.detach_volume, VolumeId=volume)
attachment = ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device="/dev/sdf")
assert attachment["State"] == "attaching" and attachment["VolumeId"] == volume, attachment
refused("VolumeInUse", ec2.attach_volume, VolumeId=volume, InstanceId=instance, Device="/dev/sdg")
refused("VolumeInUse", ec2.delete_volume, VolumeId=volume)
found = reaches(volume, "in-use", "attached")
assert not found["Attachments"][0]["DeleteOnTermination"], found

ec2.create_tags(Resources=[volume], Tags=[{"Key": "dirty", "Value": "e"}])
ec2.delete_tags(Resources=[volume], Tags=[{"Key": "dirty", "Value": "other"}])
assert any(tag["Key"] == "dirty" for tag in describe(volume)["Tags"]), "another value is not deleted"
ec2.delete_tags(Resources=[volume], Tags=[{"Key": "dirty"}])
assert all(tag["Key"] != "dirty" for tag in describe(volume)["Tags"])

modification = ec2.modify_volume(VolumeId=volume, Size=12)["VolumeModification"]
assert (modification["TargetSize"], modification["ModificationState"]) == (12, "modifying"), modification
refused("IncorrectModificationState", ec2.modify_volume, VolumeId=volume, Size=13)
[modification] = ec2.describe_volumes_modifications(VolumeIds=[volume])["VolumesModifications"]
assert modification["TargetSize"] == 12, modification
for _ in range(LOOKS_MAX):
    if describe(volume)["Size"] == 12:
        break
    time.sleep(0.02)

others = [ec2.create_volume(AvailabilityZone=zone, Size=1, VolumeType="gp3", TagSpecifications=wanted["TagSpecifications"]) for _ in range(11)]
pages = list(
    ec2.get_paginator("describe_volumes").paginate(
        Filters=[{"Name": "tag:owner", "Values": [owner]}], PaginationConfig={"PageSize": 5}
    )
)
listed = {found["VolumeId"] for page in pages for found in page["Volumes"]}
assert [len(page["Volumes"]) for page in pages] == [5, 5, 2], pages
assert listed == {volume, *(other["VolumeId"] for other in others)}
assert len(ec2.describe_volumes(Filters=[{"Name": "tag:owner", "Values": [owner[:5] + "*"]}])["Volumes"]) == 12

assert ec2.detach_volume(VolumeId=volume, InstanceId=instance)["State"] == "detaching"
reaches(volume, "available")
for gone in listed:
    reaches(gone, "available")
    ec2.delete_volume(VolumeId=gone)
for _ in range(LOOKS_MAX):
    if not ec2.describe_volumes(Filters=[{"Name": "tag:owner", "Values": [owner]}])["Volumes"]:
        break
    time.sleep(0.02)
refused("InvalidVolume.NotFound", ec2.describe_volumes, VolumeIds=[volume])
refused("InvalidVolume.NotFound", ec2.delete_volume, VolumeId=volume)
print(replies)
