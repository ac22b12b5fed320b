//! A blocking client: fixed newstyle, simple replies, the default export, one request at a time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::wire::{self, Reader, RequestHeader, command, command_flag, handshake_flag, info, option, option_reply};

/// No reply to an option is longer.
const OPTION_REPLY_MAX: u32 = 64 << 10;

/// A connection in transmission.
#[derive(Debug)]
pub struct Client<S = UnixStream> {
    stream: S,
    size: u64,
    cookie: u64,
}

impl Client {
    /// Connects to a Unix socket and negotiates.
    ///
    /// # Errors
    /// If nobody listens, or the server does not speak fixed newstyle.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        Self::negotiate(UnixStream::connect(socket)?)
    }
}

fn protocol(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("NBD: {}", what.into()))
}

fn take<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl<S: Read + Write> Client<S> {
    /// Negotiates over a connection.
    ///
    /// # Errors
    /// If the server does not speak fixed newstyle, or refuses.
    pub fn negotiate(mut stream: S) -> io::Result<Self> {
        let magics = [take(&mut stream)?, take(&mut stream)?].map(u64::from_be_bytes);
        let flags =
            if magics == [wire::MAGIC, wire::OPTION_MAGIC] { u16::from_be_bytes(take(&mut stream)?) } else { 0 };
        if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(protocol("the server does not speak the fixed newstyle protocol"));
        }
        let answer = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        let mut hello = u32::from(answer).to_be_bytes().to_vec();
        // Length of the name (none: the default export), number of information requests (none).
        wire::encode_option(&mut hello, option::GO, &[0; 6]);
        stream.write_all(&hello)?;
        let mut size = 0;
        loop {
            let (kind, data) = reply_to_option(&mut stream)?;
            match kind {
                option_reply::ACK => return Ok(Self { stream, size, cookie: 0 }),
                option_reply::INFO => {
                    let mut data = Reader(&data);
                    if data.u16() == Some(info::EXPORT) {
                        size = data.u64().ok_or_else(|| protocol("the export has no size"))?;
                    }
                }
                kind if kind & option_reply::ERROR != 0 => {
                    let said = String::from_utf8_lossy(&data).into_owned();
                    return Err(protocol(format!("the server refused the export ({kind:#x}): {said}")));
                }
                _ => {}
            }
        }
    }

    /// Bytes of the export.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Sends a request without waiting for its reply.
    ///
    /// # Errors
    /// A broken connection.
    pub fn send(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> io::Result<()> {
        self.cookie += 1;
        let header = RequestHeader { flags, command, cookie: self.cookie, offset, length };
        let mut request = Vec::with_capacity(wire::REQUEST_LENGTH + data.len());
        request.extend(header.encode());
        request.extend(data);
        self.stream.write_all(&request)?;
        self.stream.flush()
    }

    fn receive(&mut self) -> io::Result<()> {
        if u32::from_be_bytes(take(&mut self.stream)?) != wire::SIMPLE_REPLY_MAGIC {
            return Err(protocol("a reply lacks its magic number"));
        }
        let error = u32::from_be_bytes(take(&mut self.stream)?);
        if u64::from_be_bytes(take(&mut self.stream)?) != self.cookie {
            return Err(protocol("a reply answers another request"));
        }
        match i32::try_from(error) {
            Ok(0) => Ok(()),
            // The protocol's errors are Linux's errnos.
            Ok(error) => Err(io::Error::from_raw_os_error(error)),
            Err(_) => Err(protocol(format!("the server answered error {error}"))),
        }
    }

    fn ask(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> io::Result<()> {
        self.send(command, flags, offset, length, data)?;
        self.receive()
    }

    /// Reads so many bytes from `offset` on.
    ///
    /// # Errors
    /// The server's errno, or a broken connection.
    pub fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.ask(command::READ, 0, offset, request_length(length)?, &[])?;
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.ask(command::WRITE, 0, offset, request_length(data.len())?, data)
    }

    /// A write that is durable when it is answered.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn write_fua(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.ask(command::WRITE, command_flag::FUA, offset, request_length(data.len())?, data)
    }

    /// Makes completed writes durable.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn flush(&mut self) -> io::Result<()> {
        self.ask(command::FLUSH, 0, 0, 0, &[])
    }

    /// Discards a range.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn trim(&mut self, offset: u64, length: u32) -> io::Result<()> {
        self.ask(command::TRIM, 0, offset, length, &[])
    }

    /// Zeroes a range.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn write_zeroes(&mut self, offset: u64, length: u32) -> io::Result<()> {
        self.ask(command::WRITE_ZEROES, 0, offset, length, &[])
    }

    /// Leaves; the server closes the connection.
    ///
    /// # Errors
    /// If the connection is broken already.
    pub fn disconnect(mut self) -> io::Result<()> {
        self.send(command::DISCONNECT, 0, 0, 0, &[])
    }
}

fn reply_to_option(stream: &mut impl Read) -> io::Result<(u32, Vec<u8>)> {
    if u64::from_be_bytes(take(stream)?) != wire::OPTION_REPLY_MAGIC {
        return Err(protocol("a reply to an option lacks its magic number"));
    }
    let [_option, kind, length] = [take(stream)?, take(stream)?, take(stream)?].map(u32::from_be_bytes);
    if length > OPTION_REPLY_MAX {
        return Err(protocol(format!("a reply to an option has {length} bytes")));
    }
    let mut data = vec![0; length as usize];
    stream.read_exact(&mut data)?;
    Ok((kind, data))
}

fn request_length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| protocol(format!("a request of {bytes} bytes is too long")))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::wire::error;

    /// A server of one connection over `export`, with only what is tested; refuses writes beyond the end.
    fn serve(mut stream: UnixStream, mut export: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut hello = wire::MAGIC.to_be_bytes().to_vec();
        hello.extend(wire::OPTION_MAGIC.to_be_bytes());
        hello.extend((handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
        stream.write_all(&hello)?;
        let _flags: [u8; 4] = take(&mut stream)?;
        let option: [u8; 22] = take(&mut stream)?;
        assert_eq!(option[8..12], option::GO.to_be_bytes());
        let mut information = info::EXPORT.to_be_bytes().to_vec();
        information.extend((export.len() as u64).to_be_bytes());
        information.extend(1u16.to_be_bytes());
        let mut replies = Vec::new();
        wire::encode_option_reply(&mut replies, option::GO, option_reply::INFO, &information);
        wire::encode_option_reply(&mut replies, option::GO, option_reply::ACK, &[]);
        stream.write_all(&replies)?;
        loop {
            let header = RequestHeader::parse(&take(&mut stream)?).unwrap();
            let (offset, length) = (header.offset as usize, header.length as usize);
            let mut data = vec![0; if header.command == command::WRITE { length } else { 0 }];
            stream.read_exact(&mut data)?;
            let fits = offset + length <= export.len();
            match header.command {
                command::DISCONNECT => return Ok(export),
                command::WRITE if fits => export[offset..offset + length].copy_from_slice(&data),
                _ => {}
            }
            let mut reply = Vec::new();
            wire::simple_reply(&mut reply, if fits { 0 } else { error::ENOSPC }, header.cookie);
            if header.command == command::READ {
                reply.extend(&export[offset..offset + length]);
            }
            stream.write_all(&reply)?;
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || serve(theirs, vec![0; 8192]).unwrap());
        let mut client = Client::negotiate(ours).unwrap();
        assert_eq!(client.size(), 8192);
        client.write(4096, &[7; 512]).unwrap();
        client.flush().unwrap();
        let found = client.read(4096, 1024).unwrap();
        assert_eq!((found[511], found[512]), (7, 0));
        assert_eq!(client.write(8000, &[1; 512]).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        client.disconnect().unwrap();
        assert_eq!(server.join().unwrap()[4096], 7);
    }

    #[test]
    fn what_is_no_nbd_server_is_refused() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        assert!(Client::negotiate(ours).unwrap_err().to_string().contains("newstyle"));
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(Client::negotiate(ours).is_err());
    }
}
