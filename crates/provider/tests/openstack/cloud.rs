//! A cloud on loopback: Keystone, Cinder and Nova themselves, each a process; and tenants of it, each in a region of its own, whose
//! calls pass a proxy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use surgetank_provider::{OpenStackConfig, OpenStackProvider};
use tempfile::TempDir;

use crate::http::{Reply, ask};
use crate::proxy::{self, Faults};

/// How long a service may take to begin, in looks at 100 ms.
const LOOKS_MAX: u32 = 1200;

/// A process that ends with this one: it watches its standard input.
struct Process {
    _child: Child,
    port: String,
}

pub struct Cloud {
    directory: TempDir,
    keystone: String,
    admin: String,
    cinder: Process,
    nova: String,
    _keystone: Process,
    _nova: Option<Process>,
}

/// The cloud that all tests of this process share; `None`, after a word about it: it is not installed.
pub fn cloud() -> Option<&'static Cloud> {
    static CLOUD: OnceLock<Option<Cloud>> = OnceLock::new();
    CLOUD.get_or_init(Cloud::start).as_ref()
}

/// A random name.
pub fn nonce() -> String {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A random id as OpenStack's are.
pub fn uuid() -> String {
    let n = nonce();
    format!("{}-{}-4{}-8{}-{}", &n[..8], &n[8..12], &n[13..16], &n[17..20], &n[20..32])
}

fn start(python: &Path, script: &str, directory: &Path, arguments: &[&str]) -> Process {
    fs::create_dir(directory).unwrap();
    let log = fs::File::create(directory.join("log")).unwrap();
    // Also for tests of other crates.
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../provider/tests/openstack").join(script);
    let mut child = Command::new(python)
        .arg(script)
        .arg(directory)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    for _ in 0..LOOKS_MAX {
        if let Ok(port) = fs::read_to_string(directory.join("port")) {
            return Process { _child: child, port };
        }
        assert!(child.try_wait().unwrap().is_none(), "{}", fs::read_to_string(directory.join("log")).unwrap());
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("it does not begin: {}", fs::read_to_string(directory.join("log")).unwrap());
}

impl Cloud {
    #[allow(clippy::print_stderr, reason = "tests say what they skip")]
    fn start() -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let installed = root.join("target/tools/openstack-python");
        let python = &installed.join("bin/python");
        let read = |path: PathBuf| fs::read_to_string(path).ok();
        let pins = read(root.join("scripts/openstack/requirements.txt"));
        let is_whole = || {
            // Found and not loaded, which takes seconds.
            let found = "import importlib.util as u; [u.find_spec(m).name for m in ('cinder', 'keystone', 'nova')]";
            let status = Command::new(python).args(["-c", found]).stdin(Stdio::null()).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        if pins.is_none() || read(installed.join("installed.txt")) != pins || !is_whole() {
            let place = installed.display();
            eprintln!(
                "skipped: at {place} is no whole OpenStack of the pinned versions: `scripts/setup test` installs it"
            );
            return None;
        }
        let directory = TempDir::new().unwrap();
        let password = nonce();
        let identity = start(python, "run_keystone.py", &directory.path().join("keystone"), &[&password]);
        let keystone = format!("http://127.0.0.1:{}/v3", identity.port);
        let cinder = start(python, "run_cinder.py", &directory.path().join("cinder"), &[&keystone, &password]);
        let admin = login(&keystone, "admin", &password, "admin");
        let mut cloud =
            Self { directory, keystone, admin, cinder, nova: String::new(), _keystone: identity, _nova: None };
        // Nova's own user, whom Cinder takes for a service.
        let (project, user) = (cloud.made("projects", "project", json!({ "name": "service" })), nonce());
        let id = cloud.made("users", "user", json!({ "name": "nova", "password": user }));
        cloud.grant(&project, &id, "service");
        let directory = cloud.directory.path().join("nova");
        let nova = start(python, "run_nova.py", &directory, &[&cloud.keystone, &password, &user]);
        cloud.nova = format!("http://127.0.0.1:{}/v2.1", nova.port);
        cloud._nova = Some(nova);
        // Cinder tells Nova of volumes that grow.
        cloud.endpoints("here", &cloud.cinder(), &cloud.nova);
        Some(cloud)
    }

    fn cinder(&self) -> String {
        format!("http://127.0.0.1:{}/v3", self.cinder.port)
    }

    fn admin(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let reply = ask(method, &format!("{}{path}", self.keystone), &[("x-auth-token", &self.admin)], body);
        assert!(reply.status < 300, "{method} {path}: {} {}", reply.status, String::from_utf8_lossy(&reply.body));
        serde_json::from_slice(&reply.body).unwrap_or_default()
    }

    fn made(&self, path: &str, kind: &str, body: Value) -> String {
        self.admin("POST", &format!("/{path}"), &json!({ kind: body }))[kind]["id"].as_str().unwrap().to_owned()
    }

    fn grant(&self, project: &str, user: &str, role: &str) {
        let roles = self.admin("GET", &format!("/roles?name={role}"), &Value::Null);
        let role = roles["roles"][0]["id"].as_str().unwrap().to_owned();
        self.admin("PUT", &format!("/projects/{project}/users/{user}/roles/{role}"), &Value::Null);
    }

    fn endpoints(&self, region: &str, cinder: &str, nova: &str) {
        for (kind, url) in [("block-storage", cinder), ("compute", nova)] {
            let found = self.admin("GET", &format!("/services?type={kind}"), &Value::Null);
            let service = found["services"][0]["id"].as_str().map(str::to_owned);
            let service =
                service.unwrap_or_else(|| self.made("services", "service", json!({ "type": kind, "name": kind })));
            let endpoint = json!({ "service_id": service, "interface": "public", "region_id": region, "url": url });
            self.made("endpoints", "endpoint", endpoint);
        }
    }

    /// A new project, with a user who may do what members may, by an application credential.
    pub fn tenant(&'static self) -> Tenant {
        self.tenant_for("127.0.0.1")
    }

    /// The same; whoever is the tenant finds this machine's loopback under another address.
    pub fn tenant_for(&'static self, host: &str) -> Tenant {
        let name = nonce();
        let (project, password) = (self.made("projects", "project", json!({ "name": name })), nonce());
        let user = self.made("users", "user", json!({ "name": name, "password": password }));
        self.grant(&project, &user, "member");
        self.made("regions", "region", json!({ "id": name }));
        let faults = Arc::new(Mutex::new(Faults::default()));
        let proxy = proxy::start(self.cinder(), self.nova.clone(), Arc::clone(&faults));
        let proxy = format!("http://{host}:{}", proxy.port());
        self.endpoints(&name, &format!("{proxy}/cinder/v3"), &format!("{proxy}/nova/v2.1"));
        let token = login(&self.keystone, &name, &password, &name);
        let server = uuid();
        let made = format!("{}/made/{server}/{project}", self.nova.trim_end_matches("/v2.1"));
        assert_eq!(ask("POST", &made, &[], Vec::new()).status, 200);
        // As docs/OPERATIONS.md recommends.
        let attachments = format!("/v2.1/servers/{server}/os-volume_attachments");
        let rule =
            |service: &str, method: &str, path: &str| json!({ "service": service, "method": method, "path": path });
        let rules = [
            rule("block-storage", "GET", "/v3/volumes/**"),
            rule("block-storage", "POST", "/v3/volumes"),
            rule("block-storage", "POST", "/v3/volumes/**"),
            rule("block-storage", "DELETE", "/v3/volumes/**"),
            rule("compute", "GET", "/v2.1/servers/*/os-volume_attachments"),
            rule("compute", "POST", &attachments),
            rule("compute", "DELETE", &format!("{attachments}/*")),
        ];
        let wanted = json!({ "application_credential":
            { "name": "surgetank", "roles": [{ "name": "member" }], "access_rules": rules } });
        let url = format!("{}/users/{user}/application_credentials", self.keystone);
        let reply = ask("POST", &url, &[("x-auth-token", &token)], wanted.to_string().into_bytes());
        let made: Value = serde_json::from_slice(&reply.body).unwrap();
        let made = &made["application_credential"];
        let (id, secret) = (made["id"].as_str().unwrap().to_owned(), made["secret"].as_str().unwrap().to_owned());
        let file = self.directory.path().join(format!("{name}.yaml"));
        let keystone = &self.keystone.replace("127.0.0.1", host);
        let text = format!(
            "clouds:\n  of-password:\n    region_name: '{name}'\n    auth: {{auth_url: '{keystone}', username: '{name}', password: '{password}', project_name: '{name}'}}\n  \
             of-credential:\n    region_name: '{name}'\n    auth: {{auth_url: '{keystone}', application_credential_id: '{id}', application_credential_secret: '{secret}'}}\n"
        );
        fs::write(&file, text).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&file, private).unwrap();
        Tenant { cloud: self, project, credential: id, server, file, secrets: vec![password, secret], faults }
    }
}

/// An account of the cloud.
pub struct Tenant {
    cloud: &'static Cloud,
    project: String,
    credential: String,
    pub server: String,
    pub file: PathBuf,
    /// What nobody may print.
    pub secrets: Vec<String>,
    pub faults: Arc<Mutex<Faults>>,
}

impl Tenant {
    pub fn config(&self, cloud: &str) -> OpenStackConfig {
        OpenStackConfig {
            cloud: Some(cloud.to_owned()),
            clouds_file: Some(self.file.clone()),
            server: Some(self.server.clone()),
            grow_in_place: true,
            reads_per_s: 1_000_000,
            writes_per_s: 1_000_000,
            ..OpenStackConfig::default()
        }
    }

    /// Whether the application credential may do this, which no rule of it permits.
    pub fn may_see_limits(&self) -> bool {
        self.get("limits").status == 200
    }

    /// How many volumes the project has, whatever their names and tags.
    pub fn volumes(&self) -> usize {
        let listed: Value = serde_json::from_slice(&self.get("volumes/detail").body).unwrap();
        listed["volumes"].as_array().unwrap().len()
    }

    /// What Cinder itself answers, by the application credential.
    fn get(&self, path: &str) -> Reply {
        let body = json!({ "auth": { "identity": { "methods": ["application_credential"],
            "application_credential": { "id": self.credential, "secret": self.secrets[1] } } } });
        let reply = ask("POST", &format!("{}/auth/tokens", self.cloud.keystone), &[], body.to_string().into_bytes());
        let token = &reply.headers.iter().find(|(name, _)| name == "x-subject-token").unwrap().1;
        ask("GET", &format!("{}/{path}", self.cloud.cinder()), &[("x-auth-token", token)], Vec::new())
    }

    /// The next volume fails, or the next growth.
    pub fn fail_next(&self) {
        fs::write(self.cloud.directory.path().join(format!("cinder/fail-{}", self.project)), "").unwrap();
    }

    pub fn open(&self) -> OpenStackProvider {
        OpenStackProvider::open(self.config("of-credential")).unwrap()
    }
}

fn login(keystone: &str, user: &str, password: &str, project: &str) -> String {
    let domain = json!({ "id": "default" });
    let body = json!({ "auth": {
        "identity": { "methods": ["password"], "password": { "user": { "name": user, "domain": domain, "password": password } } },
        "scope": { "project": { "name": project, "domain": domain } },
    } });
    let reply = ask("POST", &format!("{keystone}/auth/tokens"), &[], body.to_string().into_bytes());
    let token = reply.headers.iter().find(|(name, _)| name == "x-subject-token");
    token.unwrap_or_else(|| panic!("{reply:?}")).1.clone()
}
