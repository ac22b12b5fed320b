//! A way to a process on which a request can be held: who asked finds the connection broken, and the request arrives later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

#[derive(Default)]
struct State {
    to: Option<String>,
    /// A request that has these bytes is to be held.
    hold: Option<Vec<u8>>,
    held: Option<(Vec<u8>, OwnedWriteHalf, OwnedReadHalf)>,
}

/// See the module.
#[derive(Clone)]
pub struct Way {
    pub address: String,
    state: Arc<Mutex<State>>,
}

impl Way {
    pub async fn begin() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has an address").to_string();
        let way = Self { address, state: Arc::default() };
        let state = Arc::clone(&way.state);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(pass(Arc::clone(&state), socket));
            }
        });
        way
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it leads.
    pub fn lead(&self, to: &str) {
        self.state().to = Some(to.to_owned());
    }

    /// Holds the next request that has these bytes.
    pub fn hold(&self, bytes: &[u8]) {
        self.state().hold = Some(bytes.to_vec());
    }

    pub fn has_held(&self) -> bool {
        self.state().held.is_some()
    }

    /// The request arrives, and is carried out.
    pub async fn release(&self) {
        let (bytes, mut to, mut from) = self.state().held.take().expect("a request is held");
        to.write_all(&bytes).await.expect("it arrives");
        // What is read until the answer comes are answers to others.
        let mut answers = vec![0; 1 << 16];
        let answered = async { while from.read(&mut answers).await.is_ok_and(|read| read > 0) {} };
        let _ = tokio::time::timeout(Duration::from_secs(2), answered).await;
    }
}

async fn pass(state: Arc<Mutex<State>>, socket: TcpStream) {
    let get = || state.lock().unwrap_or_else(PoisonError::into_inner).to.clone();
    let to = loop {
        match get() {
            Some(to) => break to,
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let Ok(server) = TcpStream::connect(to).await else { return };
    let ((mut of_client, mut to_client), (mut of_server, mut to_server)) = (socket.into_split(), server.into_split());
    let (mut asked, mut answers) = (vec![0; 1 << 18], vec![0; 1 << 18]);
    loop {
        tokio::select! {
            read = of_client.read(&mut asked) => {
                let Some(read) = read.ok().filter(|read| *read > 0) else { return };
                let is_held = {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    let found = state.hold.as_ref().is_some_and(|hold| asked[..read].windows(hold.len()).any(|part| part == hold));
                    found && state.hold.take().is_some()
                };
                if is_held {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.held = Some((asked[..read].to_vec(), to_server, of_server));
                    return;
                }
                if to_server.write_all(&asked[..read]).await.is_err() {
                    return;
                }
            }
            read = of_server.read(&mut answers) => {
                let Some(read) = read.ok().filter(|read| *read > 0) else { return };
                if to_client.write_all(&answers[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}
