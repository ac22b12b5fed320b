"""A real Keystone of one process on loopback: `run_keystone.py DIRECTORY PASSWORD`. Writes its port to the file `port` once it answers."""

import base64
import os
import sys
import threading
from wsgiref.simple_server import WSGIRequestHandler, make_server

# It ends with whoever started it.
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
directory, password = sys.argv[1:]
configuration = os.path.join(directory, "keystone.conf")
keys = os.path.join(directory, "keys")
with open(configuration, "w") as file:
    file.write(f"""
[database]
connection = sqlite:///{directory}/keystone.db?timeout=60
[fernet_tokens]
key_repository = {keys}/tokens
[fernet_receipts]
key_repository = {keys}/receipts
[credential]
key_repository = {keys}/credentials
[identity]
# Hashes of passwords that only tests have.
password_hash_algorithm = bcrypt
password_hash_rounds = 4
[oslo_policy]
policy_file = {directory}/none.yaml
""")
for name in ("tokens", "receipts", "credentials"):
    os.makedirs(os.path.join(keys, name), mode=0o700)
    with open(os.path.join(keys, name, "1"), "wb") as file:
        file.write(base64.urlsafe_b64encode(os.urandom(32)))
os.environ["OS_KEYSTONE_CONFIG_FILES"] = configuration
sys.argv[1:] = []

from keystone.cmd import bootstrap
from keystone.common.sql import upgrades
from keystone.server import wsgi

application = wsgi.initialize_public_application()
upgrades.offline_sync_database_to_version()
# The application has loaded them, and they are not loaded twice.
bootstrap.backends.load_backends = lambda: None
bootstrapper = bootstrap.Bootstrapper()
bootstrapper.admin_password = password
bootstrapper.admin_username = "admin"
bootstrapper.project_name = "admin"
bootstrapper.admin_role_name = "admin"
bootstrapper.service_name = "keystone"
bootstrapper.region_id = "here"


class Handler(WSGIRequestHandler):
    def log_message(self, *_):
        pass


# One request at a time: SQLite refuses at once what two transactions want to write.
server = make_server("127.0.0.1", 0, application, handler_class=Handler)
url = f"http://127.0.0.1:{server.server_port}/v3"
bootstrapper.public_url = bootstrapper.internal_url = bootstrapper.admin_url = url
bootstrapper.bootstrap()
with open(os.path.join(directory, "port.new"), "w") as file:
    file.write(str(server.server_port))
os.rename(file.name, os.path.join(directory, "port"))
server.serve_forever()
