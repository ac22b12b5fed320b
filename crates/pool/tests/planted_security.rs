//! The tests of who is let in are tested: every planted bug is found. All runs in one thread, for which the bug is awake.
#![cfg(feature = "planted-bugs")]

use std::sync::Arc;
use std::time::Duration;

use surgetank_pool::manager::{self, Begin, Manager, Reply, Request};
use surgetank_pool::meta::Embedded;
use surgetank_pool::planted::admission::{Bug, plant};
use surgetank_pool::rpc::{Listener, Peer};
use surgetank_pool::security::token::{Claims, Grant, Key, now};
use surgetank_pool::security::{Access, Credentials};
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::placement::Media;
use tonic::Status;

const ANSWER: Duration = Duration::from_secs(20);

/// Whoever is to be let in is, and nobody else.
async fn lets_in_whom_it_may() -> Result<(), String> {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().display().to_string();
    let store = Arc::new(Embedded::open(&directory.path().join("pool.redb")).unwrap());
    let credentials = Credentials::new(Key::generate().unwrap());
    let listener = Listener::bind("127.0.0.1:0", &credentials).unwrap();
    let address = listener.address().unwrap().to_string();
    let serving = tokio::spawn(manager::run(manager::Config::default(), store, listener));
    let ask = async |access: &Access, request: Request| -> Result<Reply, Status> {
        Peer::new(&address, access).unwrap().ask::<Manager>(request, ANSWER).await
    };
    let with = |key: &Key, expires: Option<u64>| {
        let grant = Grant { target: target.clone(), mount: None, owner: None, writes: true, expires };
        key.token(&Claims::Mount(grant))
    };
    let make = Some((target.clone(), Durability::Copies { copies: 1, media: Media::Any }));
    let begin = || Request::Begin(Begin { name: "scratch".to_owned(), make: make.clone() });
    let refused = |what: &str, answer: Result<Reply, Status>| match answer {
        Ok(answer) => Err(format!("{what} is let in: {answer:?}")),
        Err(_) => Ok(()),
    };
    let own = credentials.access();
    let key = credentials.key();
    refused("another pool's token", ask(&Access::with(with(&Key::generate().unwrap(), None)), Request::Status).await)?;
    refused("an expired one", ask(&Access::with(with(key, Some(now() - 5))), Request::Status).await)?;
    let token = with(key, Some(now() + 3600));
    let access = Access::with(token.clone());
    refused("what a mount may not ask", ask(&access, Request::Revoke(1)).await)?;
    let Ok(Reply::Begun(begun)) = ask(&access, begin()).await else {
        return Err("a token begins no session".to_owned());
    };
    let session = Access::with(begun.token);
    ask(&session, Request::Renew(begun.lease)).await.map_err(|status| format!("a session: {status}"))?;
    ask(&own, Request::Revoke(token.number())).await.map_err(|status| format!("{status}"))?;
    refused("a token that was taken back", ask(&access, begin()).await)?;
    refused("its session", ask(&session, Request::Renew(begun.lease)).await)?;
    let other = Access::with(with(key, Some(now() + 7200)));
    ask(&other, begin()).await.map_err(|status| format!("another token: {status}"))?;
    serving.abort();
    Ok(())
}

fn runs(bug: Option<Bug>) -> Result<(), String> {
    plant(bug);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime.block_on(lets_in_whom_it_may());
    runtime.shutdown_background();
    plant(None);
    ended
}

#[test]
#[allow(clippy::print_stdout, reason = "where each bug shows is the result")]
fn every_planted_bug_is_found() {
    assert_eq!(runs(None), Ok(()));
    for bug in Bug::ALL {
        let what = runs(Some(*bug)).expect_err(&format!("{bug:?} is not found"));
        println!("{bug:?}: {what}");
    }
}
