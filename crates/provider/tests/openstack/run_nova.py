"""A real Nova of one process on loopback: its API, and a compute manager over its fake hypervisor.

`run_nova.py DIRECTORY KEYSTONE PASSWORD SERVICE_PASSWORD`. Writes its port to the file `port` once it serves. A POST to `/made/SERVER/PROJECT`
makes a running server, as nothing here schedules one.
"""

import os
import sys
import threading

directory, keystone, password, service_password = sys.argv[1:]

# It ends with whoever started it.
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
os.environ["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "true"
from nova import monkey_patch

monkey_patch.patch(backend="threading")
configuration = os.path.join(directory, "nova.conf")


def identity(user, password, project):
    return f"""
auth_type = password
auth_url = {keystone}
username = {user}
password = {password}
user_domain_id = default
project_name = {project}
project_domain_id = default
"""


with open(configuration, "w") as file:
    file.write(f"""
[DEFAULT]
transport_url = fake:/
host = here
state_path = {directory}
compute_driver = fake.FakeDriver
# The compute manager is there as long as this process.
service_down_time = 1000000
[api]
auth_strategy = keystone
[wsgi]
api_paste_config = {sys.prefix}/etc/nova/api-paste.ini
[api_database]
connection = sqlite:///{directory}/api.db?timeout=60
sqlite_synchronous = false
[database]
connection = sqlite:///{directory}/nova.db?timeout=60
sqlite_synchronous = false
[oslo_concurrency]
lock_path = {directory}
[oslo_policy]
policy_file = {directory}/none.yaml
[cinder]
catalog_info = block-storage::publicURL
os_region_name = here
{identity("admin", password, "admin")}
# There is no Glance; notifications name it.
[glance]
endpoint_override = http://127.0.0.1:1
[compute]
max_disk_devices_to_attach = 4
[service_user]
send_service_user_token = true
{identity("nova", service_password, "service")}
[keystone_authtoken]
www_authenticate_uri = {keystone}
service_token_roles_required = true
service_type = compute
{identity("admin", password, "admin")}
""")
sys.argv[1:] = ["--config-file", configuration]
os.environ["OS_NOVA_CONFIG_DIR"] = directory

import shutil
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

shutil.copy(f"{sys.prefix}/etc/nova/api-paste.ini", directory)

from nova import baserpc
from nova import context
from nova import objects
from nova import rpc
from nova.api.openstack import wsgi_app
from nova.compute import manager
from nova.conductor import manager as conducting
from nova.db import migration
import nova.conf
from nova.network import model
from nova.objects import base
from nova.scheduler.client import report
import oslo_messaging
from oslo_utils import timeutils
import sqlalchemy



# SQLite refuses at once to let a transaction write that has read before another one wrote. So each begins as one that writes.
@sqlalchemy.event.listens_for(sqlalchemy.Engine, "begin")
def begin(connection):
    if "in_transaction" not in connection.info:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.info["in_transaction"] = True


CONF = nova.conf.CONF
wsgi_app.init_global_data([configuration], "osapi_compute", "nova-api")
objects.register_all()
migration.db_sync(database="api")
migration.db_sync(database="main")
admin = context.get_admin_context()
for name, uuid in (("cell0", objects.CellMapping.CELL0_UUID), ("cell1", "11111111-1111-4111-8111-111111111111")):
    objects.CellMapping(admin, uuid=uuid, name=name, transport_url="fake:/", database_connection=CONF.database.connection).create()
cell = objects.CellMapping.get_by_uuid(admin, "11111111-1111-4111-8111-111111111111")
objects.HostMapping(admin, host="here", cell_mapping=cell).create()
objects.Service(admin, host="here", binary="nova-compute", topic="compute", report_count=1).create()

# There is no Placement, as nothing is scheduled.
report.SchedulerReportClient._create_client = lambda _: None
compute = manager.ComputeManager()
compute.driver.init_host("here")
conductor = conducting.ConductorManager()
for topic, one in (("compute", compute), ("conductor", conductor)):
    endpoints = [one, baserpc.BaseRPCAPI(topic, None), *one.additional_endpoints]
    rpc.get_server(oslo_messaging.Target(topic=topic, server="here"), endpoints, base.NovaObjectSerializer()).start()

api = wsgi_app.init_application("osapi_compute", "nova-api")


def make(uuid, project):
    flavor = objects.Flavor(admin, id=1, name="one", flavorid="1", memory_mb=1, vcpus=1, root_gb=1, ephemeral_gb=0, swap=0, rxtx_factor=1,
                            vcpu_weight=0, disabled=False, is_public=True, extra_specs={}, projects=[], description=None)
    instance = objects.Instance(admin, uuid=uuid, project_id=project, user_id=project, host="here", node="here", vm_state="active",
                                power_state=1, launched_on="here", launched_at=timeutils.utcnow(with_timezone=True), display_name="guest", image_ref="", root_device_name="/dev/vda",
                                system_metadata={}, metadata={}, info_cache=objects.InstanceInfoCache(network_info=model.NetworkInfo()), flavor=flavor,
                                memory_mb=1, vcpus=1, root_gb=1, ephemeral_gb=0, availability_zone="nova",
                                vm_mode=None, compute_id=1)
    instance.old_flavor = instance.new_flavor = None
    instance.numa_topology = None
    instance.create()
    objects.InstanceMapping(admin, instance_uuid=uuid, cell_mapping=cell, project_id=project, user_id=project, queued_for_delete=False).create()


def application(environ, start_response):
    parts = environ["PATH_INFO"].strip("/").split("/")
    if parts[0] == "made":
        make(parts[1], parts[2])
        start_response("200 OK", [("Content-Length", "0")])
        return [b""]
    return api(environ, start_response)


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Handler(WSGIRequestHandler):
    def log_message(self, *_):
        pass


http = make_server("127.0.0.1", 0, application, Server, Handler)
with open(os.path.join(directory, "port.new"), "w") as file:
    file.write(str(http.server_port))
os.rename(file.name, os.path.join(directory, "port"))
http.serve_forever()
