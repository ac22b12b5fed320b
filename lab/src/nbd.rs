//! An NBD server for QEMU: one client at a time, one request after the other.
//!
//! NBD (`docs/REFERENCES.md`): fixed newstyle, simple replies, flush and FUA.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::Context;
use surgetank_nbd::wire::{
    self, Reader, RequestHeader, command, command_flag, error, handshake_flag, info, option, option_reply,
    transmission_flag,
};

/// The longest request that is taken.
const REQUEST_MAX: u32 = 32 << 20;

const FLAGS: u16 = transmission_flag::HAS_FLAGS | transmission_flag::SEND_FLUSH | transmission_flag::SEND_FUA;

/// What is served. Errors go to the client: `InvalidInput` as EINVAL, all others as EIO.
pub trait Medium: Send + 'static {
    /// In bytes; it does not change.
    fn size(&self) -> io::Result<u64>;

    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// Writes; `forced`: it is durable once it is answered.
    fn write(&mut self, offset: u64, data: Vec<u8>, forced: bool) -> io::Result<()>;

    /// Makes durable what was answered.
    fn flush(&mut self) -> io::Result<()>;
}

impl Medium for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut data = vec![0; length];
        self.read_exact_at(&mut data, offset)?;
        Ok(data)
    }

    fn write(&mut self, offset: u64, data: Vec<u8>, forced: bool) -> io::Result<()> {
        self.write_all_at(&data, offset)?;
        if forced { self.sync_data() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Whom the server talks to, and whether it ends.
#[derive(Debug, Default)]
struct Client {
    stream: Option<UnixStream>,
    ending: bool,
}

/// A medium, served on a Unix socket as long as this lives. Dropping it hangs up.
#[derive(Debug)]
pub struct Server<M> {
    medium: Arc<Mutex<M>>,
    socket: PathBuf,
    client: Arc<Mutex<Client>>,
    listener: Option<JoinHandle<()>>,
}

impl<M: Medium> Server<M> {
    /// Serves a medium.
    pub fn start(socket: PathBuf, medium: M) -> anyhow::Result<Self> {
        let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
        let medium = Arc::new(Mutex::new(medium));
        let client = Arc::new(Mutex::new(Client::default()));
        let (shared, known) = (Arc::clone(&medium), Arc::clone(&client));
        let listener = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let mut client = lock(&known);
                if client.ending {
                    return;
                }
                client.stream = stream.try_clone().ok();
                drop(client);
                // A client that goes away in the middle of something is no trouble of ours.
                let _ = serve(stream, &shared);
            }
        });
        Ok(Self { medium, socket, client, listener: Some(listener) })
    }

    /// Where clients connect.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The medium, between two requests.
    pub fn medium(&self) -> MutexGuard<'_, M> {
        lock(&self.medium)
    }
}

impl<M> Drop for Server<M> {
    fn drop(&mut self) {
        let mut client = lock(&self.client);
        client.ending = true;
        if let Some(stream) = client.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(client);
        // Wakes the listener, which looks whether this is the end.
        let _ = UnixStream::connect(&self.socket);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection, from greeting to end.
fn serve<M: Medium>(mut stream: UnixStream, medium: &Mutex<M>) -> io::Result<()> {
    let size = lock(medium).size()?;
    if !greet(&mut stream, size)? {
        return Ok(());
    }
    loop {
        let header = RequestHeader::parse(&take(&mut stream)?).filter(|header| header.length <= REQUEST_MAX);
        let RequestHeader { flags, command, cookie, offset, length } = header.ok_or(io::ErrorKind::InvalidData)?;
        let fits = offset.checked_add(u64::from(length)).is_some_and(|end| end <= size);
        let mut reply = Vec::new();
        let done = match command {
            command::READ if fits => lock(medium).read(offset, length as usize).map(|data| reply = data),
            command::WRITE => {
                let mut data = vec![0; length as usize];
                stream.read_exact(&mut data)?;
                if fits {
                    lock(medium).write(offset, data, flags & command_flag::FUA != 0)
                } else {
                    Err(io::ErrorKind::InvalidInput.into())
                }
            }
            command::DISCONNECT => return Ok(()),
            command::FLUSH => lock(medium).flush(),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
        let error = match done {
            Ok(()) => 0,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => error::EINVAL,
            Err(_) => error::EIO,
        };
        let mut answer = Vec::new();
        wire::simple_reply(&mut answer, error, cookie);
        if error == 0 {
            answer.extend_from_slice(&reply);
        }
        stream.write_all(&answer)?;
    }
}

fn take<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Options, until the client goes on to requests (true) or away.
fn greet(stream: &mut UnixStream, size: u64) -> io::Result<bool> {
    let mut hello = wire::MAGIC.to_be_bytes().to_vec();
    hello.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
    hello.extend_from_slice(&(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
    stream.write_all(&hello)?;
    let _client_flags: [u8; 4] = take(stream)?;
    loop {
        let head: [u8; 16] = take(stream)?;
        let mut head = Reader(&head);
        let (Some(wire::OPTION_MAGIC), Some(option), Some(length @ ..=65_536)) = (head.u64(), head.u32(), head.u32())
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        stream.read_exact(&mut vec![0; length as usize])?;
        let mut replies = Vec::new();
        match option {
            // Information and its variant that goes on to requests; any name will do.
            option::INFO | option::GO => {
                let mut export = info::EXPORT.to_be_bytes().to_vec();
                export.extend_from_slice(&size.to_be_bytes());
                export.extend_from_slice(&FLAGS.to_be_bytes());
                wire::encode_option_reply(&mut replies, option, option_reply::INFO, &export);
                wire::encode_option_reply(&mut replies, option, option_reply::ACK, &[]);
            }
            option::ABORT => wire::encode_option_reply(&mut replies, option, option_reply::ACK, &[]),
            _ => wire::encode_option_reply(&mut replies, option, option_reply::ERROR_UNSUPPORTED, &[]),
        }
        stream.write_all(&replies)?;
        match option {
            option::GO => return Ok(true),
            option::ABORT => return Ok(false),
            _ => {}
        }
    }
}
