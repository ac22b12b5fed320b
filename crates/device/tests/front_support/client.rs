//! An NBD client that speaks bytes.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use surgetank_nbd::wire::{self, RequestHeader, option, option_reply};

/// A client that speaks bytes.
pub struct Client<S = UnixStream>(pub S);

impl Client {
    /// Greeted, over a Unix socket.
    pub fn connect(socket: &Path) -> Self {
        Self::greet(UnixStream::connect(socket).unwrap())
    }

    /// In transmission, over a Unix socket; with structured replies and `base:allocation` if so.
    pub fn open(socket: &Path, structured: bool) -> Self {
        let mut client = Self::connect(socket);
        client.go(structured);
        client
    }
}

impl<S: Read + Write> Client<S> {
    /// Takes the server's greeting and answers it.
    pub fn greet(stream: S) -> Self {
        let mut client = Self(stream);
        let greeting = client.take(18);
        assert_eq!(greeting[..8], wire::MAGIC.to_be_bytes());
        client.put(&3u32.to_be_bytes());
        client
    }

    /// Chooses the export; with structured replies and `base:allocation` if so.
    pub fn go(&mut self, structured: bool) {
        let client = self;
        if structured {
            client.option(option::STRUCTURED_REPLY, &[]);
            assert_eq!(client.option_reply().0, option_reply::ACK);
            let mut data = vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15];
            data.extend(b"base:allocation");
            client.option(option::SET_META_CONTEXT, &data);
            assert_eq!(client.option_reply().0, option_reply::META_CONTEXT);
            assert_eq!(client.option_reply().0, option_reply::ACK);
        }
        client.option(option::GO, &[0, 0, 0, 0, 0, 0]);
        while client.option_reply().0 != option_reply::ACK {}
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub fn take(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn option(&mut self, option: u32, data: &[u8]) {
        let mut bytes = Vec::new();
        wire::encode_option(&mut bytes, option, data);
        self.put(&bytes);
    }

    pub fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let head = self.take(20);
        assert_eq!(head[..8], wire::OPTION_REPLY_MAGIC.to_be_bytes());
        let kind = u32::from_be_bytes(head[12..16].try_into().unwrap());
        let length = u32::from_be_bytes(head[16..20].try_into().unwrap());
        (kind, self.take(length as usize))
    }

    pub fn request(&mut self, command: u16, flags: u16, offset: u64, length: u32) {
        let header = RequestHeader { flags, command, cookie: 0x77, offset, length };
        self.put(&header.encode());
    }

    /// The error of a simple reply.
    pub fn simple(&mut self) -> u32 {
        let head = self.take(16);
        assert_eq!(head[..4], wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
        assert_eq!(head[8..], 0x77u64.to_be_bytes());
        u32::from_be_bytes(head[4..8].try_into().unwrap())
    }

    pub fn ask(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u32 {
        self.request(command, flags, offset, length);
        self.simple()
    }

    /// The type and the payload of a chunk.
    pub fn chunk(&mut self) -> (u16, Vec<u8>) {
        let head = self.take(20);
        assert_eq!(head[..6], [0x66, 0x8e, 0x33, 0xef, 0, 1], "one chunk, done");
        let length = u32::from_be_bytes(head[16..20].try_into().unwrap());
        (u16::from_be_bytes([head[6], head[7]]), self.take(length as usize))
    }

    pub fn is_closed(&mut self) -> bool {
        // What the server had not read makes the end a reset.
        let mut rest = Vec::new();
        let end = self.0.read_to_end(&mut rest);
        rest.is_empty() && end.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true)
    }
}
