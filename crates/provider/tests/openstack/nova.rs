//! A fake Nova: attachments of volumes alone, as Nova 34 words them, which does to Cinder what Nova does: reserve, connect and
//! complete; begin to detach, then delete the attachment as a service.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::http::{Reply, Request, ask, serve};

/// As many as a server with virtio-blk takes.
const DISKS_MAX: usize = 26;

/// The part that remembers.
pub struct Nova {
    cinder: String,
    /// A token with the role `service`, which Cinder wants to see before it forgets an attachment.
    service_token: String,
    /// Cinder's attachment of each volume, by server and volume.
    attachments: Mutex<BTreeMap<(String, String), String>>,
}

impl Nova {
    /// Serves, and says where.
    pub fn start(cinder: String, service_token: String) -> String {
        let nova = Arc::new(Self { cinder, service_token, attachments: Mutex::default() });
        format!("http://{}/v2.1", serve(move |request| nova.answer(&request).bytes()))
    }

    fn answer(self: &Arc<Self>, request: &Request) -> Reply {
        let path: Vec<&str> = request.path.trim_start_matches("/v2.1/").split('/').collect();
        match (&*request.method, &*path) {
            ("POST", ["servers", server, "os-volume_attachments"]) => self.attach(request, server),
            ("DELETE", ["servers", server, "os-volume_attachments", volume]) => self.detach(request, server, volume),
            // Cinder tells of a volume that has grown.
            ("POST", ["os-server-external-events"]) => Reply::json(200, &json!({ "events": [] })),
            ("GET", _) => Reply::json(
                200,
                &json!({ "version": { "id": "v2.1", "status": "CURRENT", "version": "2.100", "min_version": "2.1", "links": [] } }),
            ),
            _ => fault(404, "itemNotFound", "The resource could not be found."),
        }
    }

    fn to_cinder(&self, user: &str, method: &str, path: &str, body: &Value) -> Reply {
        let headers = [
            ("x-auth-token", user),
            ("x-service-token", &*self.service_token),
            ("openstack-api-version", "volume 3.44"),
        ];
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        ask(method, &format!("{}{path}", self.cinder), &headers, body)
    }

    fn attach(self: &Arc<Self>, request: &Request, server: &str) -> Reply {
        let user = request.header("x-auth-token").unwrap_or_default().to_owned();
        let asked = request.json();
        let volume = asked["volumeAttachment"]["volumeId"].as_str().unwrap_or_default().to_owned();
        let found = self.to_cinder(&user, "GET", &format!("/volumes/{volume}"), &Value::Null);
        if found.status != 200 {
            return fault(404, "itemNotFound", &format!("Volume {volume} could not be found."));
        }
        let found: Value = serde_json::from_slice(&found.body).unwrap();
        let status = found["volume"]["status"].as_str().unwrap_or_default();
        if status != "available" {
            let said = format!("Invalid volume: volume {volume} status must be 'available'. Currently in '{status}'");
            return fault(400, "badRequest", &said);
        }
        if self.attachments.lock().unwrap().keys().filter(|(there, _)| there == server).count() >= DISKS_MAX {
            return fault(
                403,
                "forbidden",
                "The maximum allowed number of disk devices (26) to attach to a single instance has been exceeded.",
            );
        }
        let wanted = json!({ "attachment": { "volume_uuid": volume, "instance_uuid": server } });
        let reserved = self.to_cinder(&user, "POST", "/attachments", &wanted);
        if reserved.status != 200 {
            return fault(400, "badRequest", &format!("Invalid volume: {volume} cannot be reserved"));
        }
        let reserved: Value = serde_json::from_slice(&reserved.body).unwrap();
        let attachment = reserved["attachment"]["id"].as_str().unwrap().to_owned();
        self.attachments.lock().unwrap().insert((server.to_owned(), volume.clone()), attachment.clone());
        let nova = Arc::clone(self);
        std::thread::spawn(move || {
            let connector = json!({ "attachment": { "connector": { "host": "here", "mountpoint": "/dev/vdb" } } });
            nova.to_cinder(&user, "PUT", &format!("/attachments/{attachment}"), &connector);
            nova.to_cinder(&user, "POST", &format!("/attachments/{attachment}/action"), &json!({ "os-complete": {} }));
        });
        let body = json!({ "volumeAttachment": { "id": volume, "serverId": server, "volumeId": volume, "device": "/dev/vdb" } });
        Reply::json(200, &body)
    }

    fn detach(self: &Arc<Self>, request: &Request, server: &str, volume: &str) -> Reply {
        let user = request.header("x-auth-token").unwrap_or_default().to_owned();
        let key = (server.to_owned(), volume.to_owned());
        let Some(attachment) = self.attachments.lock().unwrap().get(&key).cloned() else {
            return fault(404, "itemNotFound", &format!("volume_id not found: {volume}"));
        };
        let path = format!("/volumes/{volume}/action");
        if self.to_cinder(&user, "POST", &path, &json!({ "os-begin_detaching": {} })).status != 202 {
            return fault(400, "badRequest", &format!("Invalid volume: Unable to detach {volume}"));
        }
        let nova = Arc::clone(self);
        std::thread::spawn(move || {
            nova.attachments.lock().unwrap().remove(&key);
            nova.to_cinder(&user, "DELETE", &format!("/attachments/{attachment}"), &Value::Null);
        });
        Reply::json(202, &Value::Null)
    }
}

fn fault(status: u16, name: &str, message: &str) -> Reply {
    Reply::json(status, &json!({ name: { "code": status, "message": message } }))
}
