//! A small NBD client (fixed newstyle, simple or structured replies refused: we do not ask for them), for the demo
//! without root. One request at a time over one connection. Protocol: the NBD project's doc/proto.md.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;

const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
const FLAG_NO_ZEROES: u16 = 1 << 1;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
#[cfg(test)]
const REP_INFO: u32 = 3;
const REP_ERROR: u32 = 1 << 31;
#[cfg(test)]
const INFO_EXPORT: u16 = 0;

#[cfg(test)]
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
const CMD_FLUSH: u16 = 3;

/// Nothing that a server says during negotiation is longer.
const OPTION_REPLY_MAX: u32 = 64 << 10;

/// A connection to the default export behind a Unix socket.
#[derive(Debug)]
pub struct Client<S = UnixStream> {
    stream: S,
    next_handle: u64,
}

impl Client<UnixStream> {
    /// Connects and negotiates.
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

fn read<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl<S: Read + Write> Client<S> {
    fn negotiate(mut stream: S) -> io::Result<Self> {
        if u64::from_be_bytes(read(&mut stream)?) != NBDMAGIC || u64::from_be_bytes(read(&mut stream)?) != IHAVEOPT {
            return Err(protocol("the server does not speak the newstyle protocol"));
        }
        let flags = u16::from_be_bytes(read(&mut stream)?);
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            return Err(protocol("the server does not speak the fixed newstyle protocol"));
        }
        let answer = flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        stream.write_all(&u32::from(answer).to_be_bytes())?;
        // GO: length of the name (empty: the default export), the name, number of information requests (none).
        let mut option = Vec::with_capacity(22);
        option.extend_from_slice(&IHAVEOPT.to_be_bytes());
        option.extend_from_slice(&OPT_GO.to_be_bytes());
        option.extend_from_slice(&6u32.to_be_bytes());
        option.extend_from_slice(&[0; 6]);
        stream.write_all(&option)?;
        stream.flush()?;
        loop {
            let (kind, payload) = Self::option_reply(&mut stream)?;
            match kind {
                REP_ACK => break,
                kind if kind & REP_ERROR != 0 => {
                    return Err(protocol(format!(
                        "the server refused the export: {}",
                        String::from_utf8_lossy(&payload)
                    )));
                }
                _ => {}
            }
        }
        Ok(Self { stream, next_handle: 1 })
    }

    fn option_reply(stream: &mut S) -> io::Result<(u32, Vec<u8>)> {
        if u64::from_be_bytes(read(stream)?) != OPTION_REPLY {
            return Err(protocol("a reply to an option lacks its magic number"));
        }
        let _option: [u8; 4] = read(stream)?;
        let kind = u32::from_be_bytes(read(stream)?);
        let length = u32::from_be_bytes(read(stream)?);
        if length > OPTION_REPLY_MAX {
            return Err(protocol(format!("a reply to an option has {length} bytes")));
        }
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload)?;
        Ok((kind, payload))
    }

    fn send(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) -> io::Result<u64> {
        let handle = self.next_handle;
        self.next_handle += 1;
        let mut header = Vec::with_capacity(28);
        header.extend_from_slice(&REQUEST.to_be_bytes());
        header.extend_from_slice(&0u16.to_be_bytes());
        header.extend_from_slice(&command.to_be_bytes());
        header.extend_from_slice(&handle.to_be_bytes());
        header.extend_from_slice(&offset.to_be_bytes());
        header.extend_from_slice(&length.to_be_bytes());
        self.stream.write_all(&header)?;
        self.stream.write_all(data)?;
        self.stream.flush()?;
        Ok(handle)
    }

    fn receive(&mut self, handle: u64) -> io::Result<()> {
        if u32::from_be_bytes(read(&mut self.stream)?) != SIMPLE_REPLY {
            return Err(protocol("a reply lacks its magic number"));
        }
        let error = u32::from_be_bytes(read(&mut self.stream)?);
        if u64::from_be_bytes(read(&mut self.stream)?) != handle {
            return Err(protocol("a reply answers another request"));
        }
        match i32::try_from(error) {
            Ok(0) => Ok(()),
            Ok(error) => Err(io::Error::from_raw_os_error(error)),
            Err(_) => Err(protocol(format!("the server answered error {error}"))),
        }
    }

    fn length(bytes: usize) -> io::Result<u32> {
        u32::try_from(bytes).map_err(|_| protocol(format!("a request of {bytes} bytes is too long")))
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// The server's errno, or a broken connection.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let handle = self.send(CMD_WRITE, offset, Self::length(data.len())?, data)?;
        self.receive(handle)
    }

    /// Reads from `offset` on into `into`.
    ///
    /// # Errors
    /// As [`Client::write`].
    #[cfg(test)]
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let handle = self.send(CMD_READ, offset, Self::length(into.len())?, &[])?;
        self.receive(handle)?;
        self.stream.read_exact(into)
    }

    /// Makes completed writes durable.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn flush(&mut self) -> io::Result<()> {
        let handle = self.send(CMD_FLUSH, 0, 0, &[])?;
        self.receive(handle)
    }

    /// Says goodbye. The server closes the connection.
    ///
    /// # Errors
    /// If the connection is broken already.
    pub fn disconnect(mut self) -> io::Result<()> {
        self.send(CMD_DISC, 0, 0, &[]).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A server of one connection over `export`, with only what the client uses; refuses writes beyond the end.
    fn serve(mut stream: UnixStream, mut export: Vec<u8>) -> io::Result<Vec<u8>> {
        stream.write_all(&NBDMAGIC.to_be_bytes())?;
        stream.write_all(&IHAVEOPT.to_be_bytes())?;
        stream.write_all(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes())?;
        let _flags: [u8; 4] = read(&mut stream)?;
        let option: [u8; 22] = read(&mut stream)?;
        assert_eq!(option[8..12], OPT_GO.to_be_bytes());
        let mut info = INFO_EXPORT.to_be_bytes().to_vec();
        info.extend_from_slice(&(export.len() as u64).to_be_bytes());
        info.extend_from_slice(&1u16.to_be_bytes());
        for (kind, payload) in [(REP_INFO, info.as_slice()), (REP_ACK, &[])] {
            stream.write_all(&OPTION_REPLY.to_be_bytes())?;
            stream.write_all(&OPT_GO.to_be_bytes())?;
            stream.write_all(&kind.to_be_bytes())?;
            stream.write_all(&(payload.len() as u32).to_be_bytes())?;
            stream.write_all(payload)?;
        }
        loop {
            let header: [u8; 28] = read(&mut stream)?;
            let command = u16::from_be_bytes([header[6], header[7]]);
            let offset = u64::from_be_bytes(header[16..24].try_into().unwrap()) as usize;
            let length = u32::from_be_bytes(header[24..28].try_into().unwrap()) as usize;
            let mut data = vec![0; if command == CMD_WRITE { length } else { 0 }];
            stream.read_exact(&mut data)?;
            let fits = offset + length <= export.len();
            match command {
                CMD_DISC => return Ok(export),
                CMD_WRITE if fits => export[offset..offset + length].copy_from_slice(&data),
                CMD_READ if fits => data = export[offset..offset + length].to_vec(),
                _ => {}
            }
            stream.write_all(&SIMPLE_REPLY.to_be_bytes())?;
            stream.write_all(&(if fits { 0 } else { libc::ENOSPC as u32 }).to_be_bytes())?;
            stream.write_all(&header[8..16])?;
            if command == CMD_READ {
                stream.write_all(&data)?;
            }
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || serve(theirs, vec![0; 8192]).unwrap());
        let mut client = Client::negotiate(ours).unwrap();
        client.write(4096, &[7; 512]).unwrap();
        client.flush().unwrap();
        let mut found = [0; 1024];
        client.read(4096, &mut found).unwrap();
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
