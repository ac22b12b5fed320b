//! `/dev/ublk-control`: adds, starts, stops, recovers and deletes devices.
//!
//! The driver answers a command when it is carried out, which for some takes until the device is served. So commands
//! go through a ring of their own and are abandoned after a while.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::abi::{self, ControlCode, DeviceInfo, Features, Parameters};
use crate::front::FrontError;

const PATH: &str = "/dev/ublk-control";
/// How long a command may take that waits for nobody.
const PROMPT: Duration = Duration::from_secs(10);

/// What we cannot do without.
const NEEDED: Features = Features::USER_RECOVERY.and(Features::RECOVERY_REISSUE).and(Features::IOCTL_ENCODE);

/// The way to the driver.
#[derive(Debug)]
pub(super) struct Control(File);

impl Control {
    /// Opens it, and asks the driver what it can do.
    ///
    /// # Errors
    /// There is no driver, no right to use it, or it lacks what we need.
    pub(super) fn open() -> Result<(Self, Features), FrontError> {
        let failed = |error: io::Error| {
            let remedy = match error.kind() {
                io::ErrorKind::NotFound => "load the module (`modprobe ublk_drv`), or export with fuse or nbd",
                io::ErrorKind::PermissionDenied => "run as root, or export with nbd",
                _ => "export with fuse or nbd",
            };
            FrontError::new(&format!("cannot use {PATH}"), error, remedy)
        };
        let control = Self(OpenOptions::new().read(true).write(true).open(PATH).map_err(failed)?);
        let features = control.features().map_err(|error| match error.raw_os_error() {
            // Before Linux 6.5 a driver cannot be asked, and before 6.4 it has other commands.
            Some(libc::EOPNOTSUPP | libc::EINVAL) => too_old("does not tell its features"),
            _ => failed(error),
        })?;
        if !features.has(NEEDED) {
            return Err(too_old("cannot hand a device on to the next server"));
        }
        Ok((control, features))
    }

    fn features(&self) -> io::Result<Features> {
        let (result, bytes) = self.ask(ControlCode::GetFeatures, abi::ANY_DEVICE, [0; 8], 0)?;
        check(result)?;
        Ok(Features(u64::from_ne_bytes(bytes)))
    }

    /// Adds a device; the driver chooses its number.
    pub(super) fn add(&self, wanted: &DeviceInfo) -> io::Result<DeviceInfo> {
        let (result, bytes) = self.ask(ControlCode::Add, abi::ANY_DEVICE, wanted.encode(), 0)?;
        check(result)?;
        Ok(DeviceInfo::decode(&bytes))
    }

    /// What the driver knows of a device.
    pub(super) fn info(&self, device: u32) -> io::Result<DeviceInfo> {
        let (result, bytes) = self.ask(ControlCode::GetInfo, device, [0; DeviceInfo::BYTES], 0)?;
        check(result)?;
        Ok(DeviceInfo::decode(&bytes))
    }

    pub(super) fn set_parameters(&self, device: u32, parameters: &Parameters) -> io::Result<()> {
        let (result, _) = self.ask(ControlCode::SetParameters, device, parameters.encode(), 0)?;
        check(result)
    }

    pub(super) fn parameters(&self, device: u32) -> io::Result<Parameters> {
        let mut header = [0; Parameters::BYTES];
        header[0..4].copy_from_slice(&(Parameters::BYTES as u32).to_ne_bytes());
        let (result, bytes) = self.ask(ControlCode::GetParameters, device, header, 0)?;
        check(result)?;
        Parameters::decode(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Makes the device appear; waits until it is served.
    pub(super) fn start(&self, device: u32, patience: Duration) -> io::Result<()> {
        check(self.command(ControlCode::Start, device, std::process::id().into(), patience)?)
    }

    /// A quiesced device forgets its dead server. Fails with EBUSY until nothing of that is left.
    pub(super) fn start_recovery(&self, device: u32) -> io::Result<()> {
        check(self.command(ControlCode::StartRecovery, device, 0, PROMPT)?)
    }

    /// A quiesced device goes on; waits until it is served.
    pub(super) fn end_recovery(&self, device: u32, patience: Duration) -> io::Result<()> {
        check(self.command(ControlCode::EndRecovery, device, std::process::id().into(), patience)?)
    }

    /// Takes the block device away. What its page cache has not written yet is lost, so it is written before.
    pub(super) fn stop(&self, device: u32) -> io::Result<()> {
        check(self.command(ControlCode::Stop, device, 0, PROMPT)?)
    }

    /// Deletes the device, as soon as nobody has it open.
    pub(super) fn delete(&self, device: u32) -> io::Result<()> {
        match self.command(ControlCode::DeleteAsync, device, 0, PROMPT)? {
            // Before Linux 6.8: the device is deleted at once, and then the command waits for its last user.
            refused if refused == -libc::EOPNOTSUPP => {
                match self.command(ControlCode::Delete, device, 0, Duration::from_secs(1)) {
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
                    result => check(result?),
                }
            }
            result => check(result),
        }
    }

    /// Gives a device in use another size, in bytes.
    pub(super) fn update_size(&self, device: u32, size: u64) -> io::Result<()> {
        check(self.command(ControlCode::UpdateSize, device, size >> abi::SECTOR_SHIFT, PROMPT)?)
    }

    fn command(&self, code: ControlCode, device: u32, data: u64, patience: Duration) -> io::Result<i32> {
        self.carry_out(code, abi::control_command(device, 0, 0, data), patience)
    }

    /// A command with memory that the driver reads and writes; returns that.
    fn ask<const N: usize>(
        &self,
        code: ControlCode,
        device: u32,
        memory: [u8; N],
        data: u64,
    ) -> io::Result<(i32, [u8; N])> {
        let memory = Box::into_raw(Box::new(memory));
        let command = abi::control_command(device, memory as u64, N as u16, data);
        let result = self.carry_out(code, command, PROMPT);
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::TimedOut) {
            // The driver may still write there.
            return Err(io::ErrorKind::TimedOut.into());
        }
        // SAFETY: it came from `Box::into_raw` above, and the driver has answered or never saw it.
        let memory = unsafe { Box::from_raw(memory) };
        Ok((result?, *memory))
    }

    /// The driver's answer: not negative, or a negative errno.
    fn carry_out(&self, code: ControlCode, command: [u8; 80], patience: Duration) -> io::Result<i32> {
        let mut ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder().build(2)?;
        let entry = opcode::UringCmd80::new(types::Fd(self.0.as_raw_fd()), code.number()).cmd(command).build();
        // SAFETY: the entry names memory only through `ask`, which keeps it until the driver has answered.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        let timeout = types::Timespec::from(patience);
        let arguments = types::SubmitArgs::new().timespec(&timeout);
        let until = std::time::Instant::now() + patience;
        loop {
            let entered = ring.submitter().submit_with_args(1, &arguments);
            if let Some(answer) = ring.completion().next() {
                return Ok(answer.result());
            }
            match entered {
                Err(error) if error.kind() == io::ErrorKind::Interrupted && std::time::Instant::now() < until => {}
                // Whatever it was, the driver may have taken the command and answer it later.
                _ => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

fn too_old(what: &str) -> FrontError {
    FrontError(format!("this kernel's ublk driver {what}: Linux 6.5 or newer is needed, or export with fuse or nbd"))
}

/// The numbers of all ublk devices there are, whoever made them.
pub(super) fn devices() -> Vec<u32> {
    let entries = fs::read_dir("/sys/class/ublk-char").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok()).collect()
}
