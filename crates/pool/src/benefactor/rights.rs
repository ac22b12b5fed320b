//! What a token allows whoever asks a benefactor.
//!
//! A benefactor knows sessions and files, and not to which mount a file belongs. So a session puts, seals and withdraws in its own name
//! alone, and reads what it has put itself, or a file whose ticket a manager has given it. A session may seal the chunks of others that its file keeps.

use tonic::Status;

use super::Benefactor;
use crate::chunks::Request;
use crate::security::token::{Claims, Key};

impl Benefactor {
    pub(super) fn check(key: &Key, by: &Claims, request: &Request) -> Result<(), Status> {
        let is_allowed = match (by, request) {
            (Claims::Member, _) => true,
            (Claims::Session(by), Request::Put(put)) => by.writes && put.entry.instance.session == by.session,
            (Claims::Session(by), Request::Draft(draft)) => by.writes && draft.entry.instance.session == by.session,
            (Claims::Session(by), Request::Seal(seal)) => by.writes && seal.of.2 == by.session,
            (Claims::Session(by), Request::Get(get) | Request::Table(get)) => {
                key.is_ticket(&get.ticket, by.session, get.of.0.inode)
            }
            (Claims::Session(by), Request::Forget(news)) => {
                news.words.is_none() && news.withdrawn.iter().all(|instance| instance.session == by.session)
            }
            (Claims::Session(_) | Claims::Mount(_), _) => false,
        };
        if is_allowed { Ok(()) } else { Err(Status::permission_denied("the token does not allow this request")) }
    }
}
