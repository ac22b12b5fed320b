"""A real Cinder of one process on loopback: API, scheduler and volume manager over a driver that keeps nothing.

`run_cinder.py DIRECTORY KEYSTONE PASSWORD`. Writes its port to the file `port` once it serves. Its driver fails to make or grow a volume of a project for which
a file `fail-PROJECT` is there, and removes it.
"""

import os
import shutil
import sys
import threading

directory, keystone, password = sys.argv[1:]

# It ends with whoever started it, and so does what it wrote. Before the libraries make threads of another kind of these.
read, remove = os.read, shutil.rmtree


def end():
    read(0, 1)
    remove(os.path.dirname(directory), ignore_errors=True)
    os._exit(0)


threading.Thread(target=end, daemon=True).start()

from cinder import monkey_patch

monkey_patch.patch()

configuration = os.path.join(directory, "cinder.conf")
identity = f"""
auth_type = password
auth_url = {keystone}
username = admin
password = {password}
user_domain_id = default
project_name = admin
project_domain_id = default
"""
with open(configuration, "w") as file:
    file.write(f"""
[DEFAULT]
transport_url = fake:/
host = here
state_path = {directory}
auth_strategy = keystone
api_paste_config = {sys.prefix}/etc/cinder/api-paste.ini
resource_query_filters_file = {sys.prefix}/etc/cinder/resource_filters.json
osapi_volume_listen = 127.0.0.1
osapi_volume_listen_port = 0
osapi_volume_workers = 1
osapi_max_limit = 4
enabled_backends = here
# Its volume manager is in the same process and tells its room at once.
scheduler_driver_init_wait_time = 1
default_volume_type = __DEFAULT__
# A creation that fails is not tried again.
scheduler_max_attempts = 1
# It is there as long as this process.
service_down_time = 1000000
quota_volumes = 20
quota_gigabytes = 500
[here]
volume_backend_name = here
volume_driver = driver.Driver
[database]
connection = sqlite:///{directory}/cinder.db?timeout=60
sqlite_synchronous = false
[oslo_concurrency]
lock_path = {directory}
[oslo_policy]
policy_file = {directory}/none.yaml
[coordination]
backend_url = file://{directory}
[keystone_authtoken]
www_authenticate_uri = {keystone}
service_token_roles_required = true
# Without it no application credential with access rules is let in.
service_type = block-storage
{identity}
[nova]
region_name = here
token_auth_url = {keystone}
{identity}
""")
sys.argv[1:] = ["--config-file", configuration]

import types

from oslo_config import cfg

from cinder import i18n

i18n.enable_lazy()
from cinder.common import config  # noqa: F401
from cinder import objects
from cinder import rpc
from cinder import service
from cinder import version
from cinder.db import migration
from cinder.volume import driver as base


class Driver(base.VolumeDriver):
    """Volumes are names."""

    VERSION = "1"

    def check_for_setup_error(self):
        pass

    def fail_if_asked(self, volume):
        fail = os.path.join(directory, f"fail-{volume.project_id}")
        if os.path.exists(fail):
            os.remove(fail)
            raise base.exception.VolumeBackendAPIException(data="it is to fail")

    def create_volume(self, volume):
        self.fail_if_asked(volume)

    def delete_volume(self, volume):
        pass

    def extend_volume(self, volume, new_size):
        self.fail_if_asked(volume)

    def create_export(self, context, volume, connector):
        pass

    def ensure_export(self, context, volume):
        pass

    def remove_export(self, context, volume):
        pass

    def initialize_connection(self, volume, connector):
        return {"driver_volume_type": "fake", "data": {}}

    def terminate_connection(self, volume, connector, **_):
        pass

    def get_volume_stats(self, refresh=False):
        return {"volume_backend_name": "here", "vendor_name": "none", "driver_version": "1", "storage_protocol": "fake",
                "total_capacity_gb": 1000, "free_capacity_gb": 1000, "reserved_percentage": 0}


module = types.ModuleType("driver")
module.Driver = Driver
sys.modules["driver"] = module

objects.register_all()
CONF = cfg.CONF
CONF(sys.argv[1:], project="cinder", version=version.version_string())
config.set_middleware_defaults()
migration.db_sync()
rpc.init(CONF)

import eventlet

volume = service.Service.create(host="here@here", service_name="here", binary="cinder-volume", coordination=True)
volume.start()
scheduler = service.Service.create(binary="cinder-scheduler")
scheduler.start()
api = service.WSGIService("osapi_volume")
api.start()
with open(os.path.join(directory, "port.new"), "w") as file:
    file.write(str(api.port))
os.rename(file.name, os.path.join(directory, "port"))
while True:
    eventlet.sleep(3600)
