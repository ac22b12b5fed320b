//! Both ends of the provisioning protocol: what a service may answer, and what a client may send.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use surgetank_model::units::Span;
use surgetank_model::{Bytes, Lag};
use surgetank_provider::service::{self, Secret, wire};
use surgetank_provider::{
    Change, CreateVolume, DiskIdentity, Home, HostConfig, HostProvider, Provider, ProviderError, Tags, Transition,
    VolumeDescription, VolumeId, VolumeState,
};

/// The token of the services here; the targets put it where an input says `TOKEN`.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// The longest thing that a client of ours repeats of what a service says, in bytes.
const REASON_BYTES_MAX: usize = 2048;

/// A file with the token.
fn token_file() -> PathBuf {
    static DIRECTORY: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
        use std::os::unix::fs::OpenOptionsExt;
        let directory = tempfile::tempdir().expect("a directory for the token");
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(directory.path().join("token"));
        file.and_then(|mut file| file.write_all(TOKEN.as_bytes())).expect("a token file");
        directory
    });
    DIRECTORY.path().join("token")
}

/// A service that answers everything with the same bytes.
struct Parrot {
    address: SocketAddr,
    answer: Arc<Mutex<Vec<u8>>>,
}

fn parrot() -> &'static Parrot {
    static PARROT: LazyLock<Parrot> = LazyLock::new(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on the loopback");
        let address = listener.local_addr().expect("its address");
        let answer = Arc::<Mutex<Vec<u8>>>::default();
        let bytes = answer.clone();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // The client may hang up on any of this.
                let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(&bytes);
                let _ = stream.shutdown(Shutdown::Write);
                while stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {}
            }
        });
        Parrot { address, answer }
    });
    &PARROT
}

fn request() -> CreateVolume {
    let (token, volume_type) = ("t".to_owned(), "fast".to_owned());
    CreateVolume { token, volume_type, size: Bytes::from_mib(1), tags: Tags::new() }
}

/// The client of a service that answers with these bytes, whatever it is asked.
pub fn answers(data: &[u8]) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let parrot = parrot();
    *parrot.answer.lock().unwrap_or_else(PoisonError::into_inner) = data.to_vec();
    let config = HostConfig {
        timeout: Span(Duration::from_secs(10)),
        ..HostConfig::new(format!("http://{}", parrot.address), token_file())
    };
    let client = HostProvider::open(config).expect("a client");
    let id = VolumeId("vol-1".to_owned());
    let check = |error: ProviderError| {
        let said = error.to_string();
        assert!(said.len() <= REASON_BYTES_MAX && !said.contains(char::is_control), "{said:?}");
        match error {
            ProviderError::NotFound(other) | ProviderError::Conflict { id: other, .. } => {
                assert!(wire::is_id(&other.0));
                Some(other)
            }
            _ => None,
        }
    };
    let of_it = |error| assert!(check(error).is_none_or(|other| other == id), "it speaks of another volume");
    match client.describe(&id) {
        Ok(volume) => {
            assert_eq!(volume.id, id);
            let device = volume.device.map(|path| path.to_string_lossy().into_owned());
            let shown = volume.disk.map(|disk| match disk {
                DiskIdentity::Serial(text) | DiskIdentity::Name(text) => text,
                DiskIdentity::Lun(lun) => lun.to_string(),
            });
            let texts = volume.tags.into_iter().flat_map(|(key, value)| [key, value]).chain(shown).chain(device);
            texts.for_each(|text| assert!(text.len() <= 4096 && !text.contains(char::is_control), "{text:?}"));
        }
        Err(error) => of_it(error),
    }
    match client.create(&request()) {
        Ok((volume, _)) => assert!(wire::is_id(&volume.id.0)),
        Err(error) => drop(check(error)),
    }
    match client.list("k", "v") {
        Ok(volumes) => {
            assert!(volumes.len() <= data.len() && volumes.iter().all(|volume| wire::is_id(&volume.id.0)));
        }
        Err(error) => drop(check(error)),
    }
    if let Err(error) = client.delete(&id) {
        of_it(error);
    }
    assert_eq!(client.home(), Home::Disks, "a service never says where files lie");
}

/// Counts what it is asked for.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Counting {
    fn volume(&self, id: &VolumeId) -> VolumeDescription {
        self.0.fetch_add(1, Ordering::Relaxed);
        VolumeDescription {
            id: id.clone(),
            state: VolumeState::Available,
            volume_type: "fast".to_owned(),
            size: Bytes::from_mib(1),
            tags: Tags::new(),
            device: None,
            disk: None,
            members: Vec::new(),
        }
    }
}

impl Provider for Counting {
    fn home(&self) -> Home {
        Home::Disks
    }
    fn create_is_exclusive(&self) -> bool {
        true
    }
    fn lag(&self) -> Lag {
        Lag::NONE
    }
    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        let volume = self.volume(&VolumeId("vol-1".to_owned()));
        Ok((VolumeDescription { tags: request.tags.clone(), ..volume }, Change::Changed))
    }
    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        match transition {
            Transition::Attach => Err(ProviderError::NotFound(id.clone())),
            Transition::Detach => Ok(Change::Changed),
            Transition::Delete => Ok(Change::Identity),
        }
    }
    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        Ok(self.volume(id))
    }
    fn list(&self, key: &str, _: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        Ok(vec![self.volume(&VolumeId(key.to_owned()))])
    }
    fn set_tag(&self, _: &VolumeId, _: &str, _: Option<&str>) -> Result<Change, ProviderError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Change::Changed)
    }
}

/// The service, and a client that sends these bytes. An odd first byte: it knows the token.
pub fn requests(data: &[u8]) {
    let Some((first, sent)) = data.split_first() else { return };
    let knows = first % 2 == 1;
    let mut bytes = Vec::new();
    let mut rest = sent;
    while let Some(at) = rest.windows(5).position(|window| knows && window == b"TOKEN") {
        bytes.extend_from_slice(&rest[..at]);
        bytes.extend_from_slice(TOKEN.as_bytes());
        rest = &rest[at + 5..];
    }
    bytes.extend_from_slice(rest);
    let provider = Arc::new(Counting::default());
    let secret = Secret::read(&token_file()).expect("the token is there");
    let mut answers = Vec::new();
    // Whether it broke off is the client's affair.
    let _ = service::converse(provider.clone(), secret, &bytes, &mut answers);
    let calls = provider.0.load(Ordering::Relaxed);
    assert!(knows || calls == 0, "nothing is done without the token");
    assert!(calls * 16 <= bytes.len(), "{calls} calls for {} bytes", bytes.len());
    assert!(answers.len() <= 1024 + 32 * bytes.len(), "{} bytes answer {}", answers.len(), bytes.len());
    assert!(answers.is_empty() || answers.starts_with(b"HTTP/1."));
    assert!(!answers.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes()) || knows);
}
