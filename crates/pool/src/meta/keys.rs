//! How keys are spelt: a letter for the kind, then its numbers big-endian, so that the order of the bytes is the keys' own within a kind
//! and all keys of a prefix lie together.

use bytes::{Buf, Bytes};
use surgetank_pool_core::id::{BenefactorId, Inode, MountId, SessionId, Version};
use surgetank_pool_core::meta::{Key, Name, Prefix, Role};

use crate::wire::Malformed;

/// A key's bytes.
pub(super) fn of_key(key: &Key) -> Vec<u8> {
    match key {
        Key::Benefactor(id) => spelt(b'b', &[&id.0.to_be_bytes()]),
        Key::Lends(id) => spelt(b'l', &[&id.0.to_be_bytes()]),
        Key::Session(session) => spelt(b's', &[&session.0.to_be_bytes()]),
        Key::Mount(mount) => spelt(b'm', &[&mount.0.to_be_bytes()]),
        Key::Node(inode) => spelt(b'i', &[&inode.0.to_be_bytes()]),
        Key::Entry(directory, name) => spelt(b'd', &[&directory.0.to_be_bytes(), name.bytes()]),
        Key::Group(inode, index, version) => {
            spelt(b'g', &[&inode.0.to_be_bytes(), &index.to_be_bytes(), &version.0.to_be_bytes()])
        }
        Key::Writer(inode, session) => spelt(b'w', &[&inode.0.to_be_bytes(), &session.0.to_be_bytes()]),
        Key::Locks(inode) => spelt(b'k', &[&inode.0.to_be_bytes()]),
        Key::Journal(mount, number) => spelt(b'j', &[&mount.0.to_be_bytes(), &number.to_be_bytes()]),
        Key::Owner(Role::Publisher(mount)) => spelt(b'o', &[b"p", &mount.0.to_be_bytes()]),
        Key::Owner(Role::Warden) => spelt(b'o', &[b"w"]),
        Key::Placed(mount, directory, name) => {
            spelt(b't', &[&mount.0.to_be_bytes(), &directory.to_be_bytes(), name.bytes()])
        }
        Key::Hidden(directory, name) => spelt(b'h', &[&directory.0.to_be_bytes(), name.bytes()]),
        Key::Unseen(directory) => spelt(b'u', &[&directory.0.to_be_bytes()]),
        Key::Changed(directory) => spelt(b'c', &[&directory.0.to_be_bytes()]),
        Key::Hides(mount, number) => spelt(b'H', &[&mount.0.to_be_bytes(), &number.to_be_bytes()]),
        Key::Moved(mount, number) => spelt(b'M', &[&mount.0.to_be_bytes(), &number.to_be_bytes()]),
        Key::Pool => spelt(b'p', &[]),
        Key::Revoked(token) => spelt(b'x', &[&token.to_be_bytes()]),
        Key::Fingerprint => spelt(b'f', &[]),
        Key::Record(id) => spelt(b'B', &[&id.0.to_be_bytes()]),
        Key::Leaving(id) => spelt(b'L', &[&id.0.to_be_bytes()]),
        Key::Quota(None) => spelt(b'q', &[]),
        Key::Quota(Some(user)) => spelt(b'q', &[&user.to_be_bytes()]),
        Key::Receipt(of, number) => spelt(b'r', &[&of.to_be_bytes(), &number.to_be_bytes()]),
    }
}

/// What all keys of a prefix begin with.
pub(super) fn of_prefix(prefix: Prefix) -> Vec<u8> {
    match prefix {
        Prefix::Lends => spelt(b'l', &[]),
        Prefix::Records => spelt(b'B', &[]),
        Prefix::Lives => spelt(b'b', &[]),
        Prefix::Leaving => spelt(b'L', &[]),
        Prefix::Sessions => spelt(b's', &[]),
        Prefix::Revoked => spelt(b'x', &[]),
        Prefix::Quotas => spelt(b'q', &[]),
        Prefix::Mounts => spelt(b'm', &[]),
        Prefix::Nodes => spelt(b'i', &[]),
        Prefix::AllWriters => spelt(b'w', &[]),
        Prefix::Entries(inode) => spelt(b'd', &[&inode.0.to_be_bytes()]),
        Prefix::AllGroups => spelt(b'g', &[]),
        Prefix::Groups(inode) => spelt(b'g', &[&inode.0.to_be_bytes()]),
        Prefix::Writers(inode) => spelt(b'w', &[&inode.0.to_be_bytes()]),
        Prefix::AllLocks => spelt(b'k', &[]),
        Prefix::Journal(mount) => spelt(b'j', &[&mount.0.to_be_bytes()]),
        Prefix::Hidden(inode) => spelt(b'h', &[&inode.0.to_be_bytes()]),
        Prefix::Moved(mount) => spelt(b'M', &[&mount.0.to_be_bytes()]),
    }
}

fn spelt(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    std::iter::once(kind).chain(parts.iter().flat_map(|part| part.iter().copied())).collect()
}

/// The key that is spelt so.
pub(super) fn read(bytes: &[u8]) -> Result<Key, Malformed> {
    let mut rest = Bytes::copy_from_slice(bytes);
    let from = &mut rest;
    let key = match from.try_get_u8().map_err(|_| Malformed)? {
        b'b' => Key::Benefactor(BenefactorId(number_32(from)?)),
        b'l' => Key::Lends(BenefactorId(number_32(from)?)),
        b's' => Key::Session(SessionId(number(from)?)),
        b'm' => Key::Mount(MountId(number_32(from)?)),
        b'i' => Key::Node(Inode(number(from)?)),
        b'd' => Key::Entry(Inode(number(from)?), name(from)?),
        b'h' => Key::Hidden(Inode(number(from)?), name(from)?),
        b'u' => Key::Unseen(Inode(number(from)?)),
        b'c' => Key::Changed(Inode(number(from)?)),
        b'H' => Key::Hides(MountId(number_32(from)?), number(from)?),
        b'M' => Key::Moved(MountId(number_32(from)?), number(from)?),
        b'g' => Key::Group(Inode(number(from)?), number_32(from)?, Version(number(from)?)),
        b'w' => Key::Writer(Inode(number(from)?), SessionId(number(from)?)),
        b'k' => Key::Locks(Inode(number(from)?)),
        b'j' => Key::Journal(MountId(number_32(from)?), number(from)?),
        b'o' => match from.try_get_u8().map_err(|_| Malformed)? {
            b'p' => Key::Owner(Role::Publisher(MountId(number_32(from)?))),
            b'w' => Key::Owner(Role::Warden),
            _ => return Err(Malformed),
        },
        b't' => Key::Placed(MountId(number_32(from)?), number(from)?, name(from)?),
        b'p' => Key::Pool,
        b'x' => Key::Revoked(number(from)?),
        b'f' => Key::Fingerprint,
        b'B' => Key::Record(BenefactorId(number_32(from)?)),
        b'L' => Key::Leaving(BenefactorId(number_32(from)?)),
        b'q' if from.has_remaining() => Key::Quota(Some(number_32(from)?)),
        b'q' => Key::Quota(None),
        b'r' => Key::Receipt(number(from)?, number(from)?),
        _ => return Err(Malformed),
    };
    if from.has_remaining() { Err(Malformed) } else { Ok(key) }
}

/// What is left is a name.
fn name(from: &mut Bytes) -> Result<Name, Malformed> {
    Name::new(&from.split_to(from.len())).map_err(|_| Malformed)
}

fn number(from: &mut Bytes) -> Result<u64, Malformed> {
    from.try_get_u64().map_err(|_| Malformed)
}

fn number_32(from: &mut Bytes) -> Result<u32, Malformed> {
    from.try_get_u32().map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Key> {
        let name = |text: &str| Name::new(text.as_bytes()).expect("it is a name");
        vec![
            Key::Benefactor(BenefactorId(7)),
            Key::Lends(BenefactorId(7)),
            Key::Session(SessionId(300)),
            Key::Mount(MountId(2)),
            Key::Node(Inode(1 << 40)),
            Key::Entry(Inode(9), name("a")),
            Key::Entry(Inode(9), name("a\u{fc}-0")),
            Key::Entry(Inode(256), name("b")),
            Key::Group(Inode(9), 255, Version(3)),
            Key::Group(Inode(9), 256, Version(1)),
            Key::Writer(Inode(9), SessionId(4)),
            Key::Locks(Inode(9)),
            Key::Journal(MountId(2), 9),
            Key::Placed(MountId(2), 9, name("a")),
            Key::Hidden(Inode(9), name("a")),
            Key::Hidden(Inode(256), name("b")),
            Key::Unseen(Inode(9)),
            Key::Changed(Inode(9)),
            Key::Hides(MountId(2), 9),
            Key::Moved(MountId(2), 9),
            Key::Owner(Role::Publisher(MountId(2))),
            Key::Owner(Role::Warden),
            Key::Pool,
            Key::Revoked(7),
            Key::Fingerprint,
            Key::Record(BenefactorId(7)),
            Key::Leaving(BenefactorId(7)),
            Key::Quota(None),
            Key::Quota(Some(0)),
            Key::Quota(Some(1000)),
            Key::Receipt(3, 4),
        ]
    }

    #[test]
    fn a_key_is_read_as_it_was_spelt_and_has_its_place() {
        for key in all() {
            assert_eq!(read(&of_key(&key)), Ok(key.clone()));
            for other in all() {
                let alike = std::mem::discriminant(&key) == std::mem::discriminant(&other);
                if alike && !matches!(key, Key::Owner(_)) {
                    assert_eq!(key.cmp(&other), of_key(&key).cmp(&of_key(&other)), "{key:?} {other:?}");
                }
            }
        }
    }

    #[test]
    fn a_prefix_has_the_keys_that_begin_so() {
        let prefixes = [
            Prefix::Lends,
            Prefix::Revoked,
            Prefix::Records,
            Prefix::Lives,
            Prefix::Leaving,
            Prefix::Sessions,
            Prefix::Quotas,
            Prefix::Mounts,
            Prefix::Nodes,
            Prefix::AllWriters,
            Prefix::Entries(Inode(9)),
            Prefix::AllGroups,
            Prefix::Groups(Inode(9)),
            Prefix::Writers(Inode(9)),
            Prefix::AllLocks,
            Prefix::Journal(MountId(2)),
            Prefix::Hidden(Inode(9)),
            Prefix::Moved(MountId(2)),
        ];
        for prefix in prefixes {
            for key in all() {
                assert_eq!(prefix.has(&key), of_key(&key).starts_with(&of_prefix(prefix)), "{prefix:?} {key:?}");
            }
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for bytes in [&b""[..], b"x", b"i123", b"i123456789", b"d12345678", b"d12345678a/b", b"oz"] {
            assert_eq!(read(bytes), Err(Malformed), "{bytes:?}");
        }
    }
}
