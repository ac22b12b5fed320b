//! A pool's key, and the tokens that are made of it.
//!
//! A token says what it allows, in the pool's own encoding, followed by the HMAC of that under the pool's key. So whoever has the key
//! checks a token without asking anybody, and nobody else can make one. A *ticket* is the same for one file: it lets a session read the
//! file's chunks, of which a benefactor cannot know to which mount they belong.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use bytes::Bytes;
use ring::digest::{Context, SHA256};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use surgetank_pool_core::id::{Inode, MountId, SessionId};
use surgetank_pool_core::meta::store::Lease;
use tonic::Code;

use super::revoked::Revoked;
use crate::planted::admission::{Bug, planted};
use crate::wire::{Wire, wire_enum, wire_struct};

/// Bytes of a key, and of an HMAC-SHA256.
const LENGTH: usize = 32;
/// What a key's text begins with.
const KEY: &str = "surgetank-key-";
/// What a token's text begins with.
const TOKEN: &str = "surgetank-token-";
/// What the digest of a key begins with, so that it is no digest of anything else.
const FINGERPRINT: &[u8] = b"surgetank pool key fingerprint\0";
/// Longer texts are no tokens, in bytes.
const TEXT_MAX: usize = 16 << 10;

/// What a token of an administrator allows, for the mounts that begin with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Mounts that drain to this directory or to one below it.
    pub target: String,
    /// This mount alone, by its name.
    pub mount: Option<String>,
    /// Everything that is made belongs to this user and group.
    pub owner: Option<(u32, u32)>,
    /// Files may be written.
    pub writes: bool,
    /// From then on it allows nothing: seconds since 1970, by the clock of whoever checks it.
    pub expires: Option<u64>,
}

/// What the token of a session allows, which a manager gives it when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Which.
    pub session: SessionId,
    /// Its lease.
    pub lease: Lease,
    /// The mount, and no other.
    pub mount: MountId,
    /// Everything that is made belongs to this user and group.
    pub owner: Option<(u32, u32)>,
    /// Files may be written.
    pub writes: bool,
    /// A holder of the pool's key has begun it.
    pub trusted: bool,
    /// As [`Grant::expires`].
    pub expires: Option<u64>,
    /// The number of the token that began it: it ends with that one.
    pub of: Option<u64>,
}

/// What a token allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claims {
    /// Everything: managers, benefactors and administrators make it of the key.
    Member,
    /// To begin sessions of some mounts.
    Mount(Grant),
    /// What a session does.
    Session(Session),
}

impl Claims {
    /// The mount whose room is taken by what is asked; `None`: any mount's.
    pub(crate) const fn mount(&self) -> Option<MountId> {
        match self {
            Self::Member | Self::Mount(_) => None,
            Self::Session(session) => Some(session.mount),
        }
    }

    const fn expires(&self) -> Option<u64> {
        match self {
            Self::Member => None,
            Self::Mount(grant) => grant.expires,
            Self::Session(session) => session.expires,
        }
    }
}

wire_struct! {
    Grant { target, mount, owner, writes, expires }
}

/// It is the last of a token: earlier ones end before the number of theirs.
impl Wire for Session {
    fn put(&self, out: &mut impl bytes::BufMut) {
        (self.session, self.lease, self.mount).put(out);
        (self.owner, self.writes, self.trusted).put(out);
        self.expires.put(out);
        if let Some(of) = self.of {
            of.put(out);
        }
    }

    fn take(from: &mut Bytes) -> Result<Self, crate::wire::Malformed> {
        let (session, lease, mount) = Wire::take(from)?;
        let (owner, writes, trusted) = Wire::take(from)?;
        let expires = Wire::take(from)?;
        let of = if from.is_empty() { None } else { Some(u64::take(from)?) };
        Ok(Self { session, lease, mount, owner, writes, trusted, expires, of })
    }
}

wire_enum! {
    Claims { 0 = Member, 1 = Mount(grant), 2 = Session(session), }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// It shows none.
    #[error("the pool wants a token: name the file that has one with --token, or the pool's key")]
    Missing,
    /// It is of another pool, or damaged.
    #[error("the token is not one of this pool: it is of another pool, of a key that was replaced, or damaged")]
    Foreign,
    /// Its time is over.
    #[error(
        "the token has expired {0:?} ago, by the clock of who checked it: ask for another (`surgetank pool token`)"
    )]
    Expired(Duration),
    /// It was taken back.
    #[error("the token was taken back (`surgetank pool revoke`): ask for another (`surgetank pool token`)")]
    Revoked,
}

impl Rejected {
    /// Of one that this pool made, all of its managers and benefactors say the same.
    pub(crate) const fn code(self) -> Code {
        match self {
            Self::Missing | Self::Foreign => Code::Unauthenticated,
            Self::Expired(_) | Self::Revoked => Code::PermissionDenied,
        }
    }
}

/// A pool's key. Whoever has it is trusted with everything. It is not shown.
#[derive(Clone)]
pub struct Key {
    /// As it was made.
    bytes: [u8; LENGTH],
    hmac: Arc<hmac::Key>,
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key")
    }
}

/// What an HMAC is of: a token never counts as a ticket.
const OF_TOKEN: u8 = 0;
const OF_TICKET: u8 = 1;

impl Key {
    fn new(bytes: [u8; LENGTH]) -> Self {
        Self { bytes, hmac: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &bytes)) }
    }

    /// A new one.
    ///
    /// # Errors
    /// If the system gives no random numbers.
    pub fn generate() -> std::io::Result<Self> {
        let mut bytes = [0; LENGTH];
        let none = |_| std::io::Error::other("the system gives no random numbers");
        SystemRandom::new().fill(&mut bytes).map_err(none)?;
        Ok(Self::new(bytes))
    }

    /// Reads one; `None`: that is none.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let bytes = BASE64.decode(text.trim().strip_prefix(KEY)?).ok()?;
        Some(Self::new(bytes.try_into().ok()?))
    }

    /// To be kept where nobody else reads it.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{KEY}{}", BASE64.encode(self.bytes))
    }

    /// Tells it from other keys. It is kept where others may read it: nobody learns the key from it, and it is no token.
    #[must_use]
    pub fn fingerprint(&self) -> Vec<u8> {
        let mut context = Context::new(&SHA256);
        context.update(FINGERPRINT);
        context.update(&self.bytes);
        context.finish().as_ref().to_vec()
    }

    /// A token that allows this.
    #[must_use]
    pub fn token(&self, claims: &Claims) -> Token {
        let mut bytes = vec![OF_TOKEN];
        claims.put(&mut bytes);
        let tag = hmac::sign(&self.hmac, &bytes);
        bytes.extend_from_slice(tag.as_ref());
        Token(Arc::from(format!("{TOKEN}{}", BASE64.encode(&bytes[1..]))))
    }

    /// What a token allows, at that many seconds since 1970, unless it was taken back.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn check(&self, token: Option<&str>, now: u64, revoked: &Revoked) -> Result<Claims, Rejected> {
        if planted(Bug::TokenUnchecked) {
            return Ok(Claims::Member);
        }
        let text = token.ok_or(Rejected::Missing)?;
        let text = text.strip_prefix(TOKEN).filter(|text| text.len() <= TEXT_MAX).ok_or(Rejected::Foreign)?;
        let mut bytes = vec![OF_TOKEN];
        BASE64.decode_vec(text, &mut bytes).map_err(|_| Rejected::Foreign)?;
        let at = bytes.len().checked_sub(LENGTH).filter(|at| *at > 0).ok_or(Rejected::Foreign)?;
        let tag = bytes.split_off(at);
        // The comparison takes the same time wherever they differ.
        hmac::verify(&self.hmac, &bytes, &tag).map_err(|_| Rejected::Foreign)?;
        let claims = Claims::from_bytes(Bytes::from(bytes).slice(1..)).map_err(|_| Rejected::Foreign)?;
        let is_revoked = match &claims {
            Claims::Member => false,
            Claims::Mount(_) => revoked.has(number(&tag)) && !planted(Bug::RevokedAdmitted),
            Claims::Session(session) => {
                session.of.is_some_and(|of| revoked.has(of)) && !planted(Bug::SessionOutlivesToken)
            }
        };
        if is_revoked {
            return Err(Rejected::Revoked);
        }
        match claims.expires() {
            Some(end) if end <= now && !planted(Bug::ExpiryIgnored) => {
                Err(Rejected::Expired(Duration::from_secs(now - end)))
            }
            _ => Ok(claims),
        }
    }

    /// What lets a session read a file's chunks.
    #[must_use]
    pub fn ticket(&self, session: SessionId, inode: Inode) -> Ticket {
        Ticket(Bytes::copy_from_slice(hmac::sign(&self.hmac, &of_ticket(session, inode)).as_ref()))
    }

    /// Whether a ticket is for this session and file.
    #[must_use]
    pub fn is_ticket(&self, ticket: &Ticket, session: SessionId, inode: Inode) -> bool {
        hmac::verify(&self.hmac, &of_ticket(session, inode), &ticket.0).is_ok()
    }
}

fn of_ticket(session: SessionId, inode: Inode) -> Vec<u8> {
    let mut bytes = vec![OF_TICKET];
    (session, inode).put(&mut bytes);
    bytes
}

/// See the module; an empty one is none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Ticket(pub(crate) Bytes);

impl fmt::Debug for Ticket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Ticket")
    }
}

wire_struct! {
    Ticket { 0 }
}

/// A token, which only those check who have the key. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token")
    }
}

impl Token {
    /// Reads one; `None`: that is none.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let text = text.trim();
        let bytes = BASE64.decode(text.strip_prefix(TOKEN)?).ok()?;
        (bytes.len() > LENGTH && text.len() <= TEXT_MAX).then(|| Self(text.into()))
    }

    /// To be passed on where nobody else reads it.
    #[must_use]
    pub fn to_text(&self) -> &str {
        &self.0
    }
}

impl Token {
    /// Its number, by which it is taken back: no two tokens of a pool have the same, but for those that allow the same until the same second,
    /// which are one.
    #[must_use]
    pub fn number(&self) -> u64 {
        let bytes = self.0.strip_prefix(TOKEN).and_then(|text| BASE64.decode(text).ok()).unwrap_or_default();
        number(&bytes[bytes.len().saturating_sub(LENGTH)..])
    }
}

/// How a token's number is written.
#[must_use]
pub fn number_text(number: u64) -> String {
    format!("{number:016x}")
}

/// Reads it; `None`: that is none.
#[must_use]
pub fn number_from_text(text: &str) -> Option<u64> {
    let is_one = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

/// The number of a token with this HMAC: nobody without the key makes another one with the same.
fn number(tag: &[u8]) -> u64 {
    tag.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

impl Wire for Token {
    fn put(&self, out: &mut impl bytes::BufMut) {
        self.0.to_string().put(out);
    }

    fn take(from: &mut Bytes) -> Result<Self, crate::wire::Malformed> {
        Self::from_text(&String::take(from)?).ok_or(crate::wire::Malformed)
    }
}

/// This machine's clock, in seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(expires: Option<u64>) -> Claims {
        let target = "/scratch/run1".to_owned();
        Claims::Mount(Grant { target, mount: None, owner: Some((7, 8)), writes: true, expires })
    }

    #[test]
    fn a_token_says_what_it_was_made_for_until_it_expires() {
        let key = Key::generate().unwrap();
        for claims in [Claims::Member, grant(None), grant(Some(100))] {
            let token = key.token(&claims);
            assert_eq!(key.check(Some(token.to_text()), 99, &Revoked::default()), Ok(claims.clone()));
            assert_eq!(Token::from_text(&format!(" {}\n", token.to_text())), Some(token));
        }
        let expired = key.check(Some(key.token(&grant(Some(100))).to_text()), 103, &Revoked::default());
        assert_eq!(expired, Err(Rejected::Expired(Duration::from_secs(3))));
        assert_eq!(key.check(None, 0, &Revoked::default()), Err(Rejected::Missing));
    }

    #[test]
    fn no_byte_of_a_token_can_be_changed() {
        let (key, other) = (Key::generate().unwrap(), Key::generate().unwrap());
        let token = key.token(&grant(Some(100)));
        assert_eq!(other.check(Some(token.to_text()), 0, &Revoked::default()), Err(Rejected::Foreign));
        let bytes = BASE64.decode(token.to_text().strip_prefix(TOKEN).unwrap()).unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                let text = format!("{TOKEN}{}", BASE64.encode(changed));
                assert_eq!(key.check(Some(&text), 0, &Revoked::default()), Err(Rejected::Foreign), "{at}");
            }
        }
        for length in 0..bytes.len() {
            let text = format!("{TOKEN}{}", BASE64.encode(&bytes[..length]));
            assert_eq!(key.check(Some(&text), 0, &Revoked::default()), Err(Rejected::Foreign), "{length}");
        }
        for text in ["", TOKEN, "surgetank-token-?", "Bearer x", &key.to_text()] {
            assert_eq!(key.check(Some(text), 0, &Revoked::default()), Err(Rejected::Foreign), "{text}");
            assert_eq!(Token::from_text(text), None);
        }
    }

    #[test]
    fn a_token_that_was_taken_back_and_its_sessions_are_refused_and_no_others() {
        let (key, revoked) = (Key::generate().unwrap(), Revoked::default());
        let session = |of: Option<u64>| {
            let mount = MountId(3);
            Claims::Session(Session {
                session: SessionId(1),
                lease: Lease(2),
                mount,
                owner: None,
                writes: true,
                trusted: false,
                expires: None,
                of,
            })
        };
        let (token, other) = (key.token(&grant(Some(100))), key.token(&grant(Some(101))));
        let all = [key.token(&session(Some(token.number()))), key.token(&session(Some(other.number())))];
        let admitted = |token: &Token| key.check(Some(token.to_text()), 0, &revoked).is_ok();
        assert!(admitted(&token) && all.iter().all(admitted));
        assert_eq!(number_from_text(&number_text(token.number())), Some(token.number()));
        revoked.add([token.number()]);
        assert_eq!(key.check(Some(token.to_text()), 0, &revoked), Err(Rejected::Revoked));
        assert_eq!(key.check(Some(all[0].to_text()), 0, &revoked), Err(Rejected::Revoked));
        assert!(admitted(&other) && admitted(&all[1]) && admitted(&key.token(&session(None))));
        assert!(admitted(&key.token(&Claims::Member)));
    }

    #[test]
    fn a_ticket_is_for_one_session_and_one_file() {
        let key = Key::generate().unwrap();
        let ticket = key.ticket(SessionId(1), Inode(2));
        assert!(key.is_ticket(&ticket, SessionId(1), Inode(2)));
        assert!(!key.is_ticket(&ticket, SessionId(2), Inode(2)));
        assert!(!key.is_ticket(&ticket, SessionId(1), Inode(3)));
        assert!(!key.is_ticket(&Ticket::default(), SessionId(1), Inode(2)));
        assert!(!Key::generate().unwrap().is_ticket(&ticket, SessionId(1), Inode(2)));
    }

    #[test]
    fn secrets_are_not_shown() {
        let key = Key::generate().unwrap();
        let token = key.token(&Claims::Member);
        let shown = format!("{key:?} {token:?} {:?}", key.ticket(SessionId(1), Inode(2)));
        assert_eq!(shown, "Key Token Ticket");
        assert_eq!(Key::from_text(&key.to_text()).unwrap().bytes, key.bytes);
    }
}
