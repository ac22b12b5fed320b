//! Who is let in: tokens, owners of servers on loopback, mutual TLS.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::support::{LONG, MIB, Pool, bytes, raw, read, run, same, until, write};
use surgetank_pool::benefactor::Benefactor;
use surgetank_pool::chunks::{self, Draft, DrainLost, DrainPart, Get, News, Put, Seal, SendPart};
use surgetank_pool::client::{Config, Error, PoolClient};
use surgetank_pool::manager::{self, ASIDE, Begin, Begun, Content, Ended, Manager, NUMBERS, Once};
use surgetank_pool::rpc::{Listener, Method, PROTOCOL, Peer};
use surgetank_pool::security::revoked::Revoked;
use surgetank_pool::security::token::{Claims, Grant, Key, Ticket, now};
use surgetank_pool::security::{Access, Credentials, NoSecret, files};
use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf, Instance};
use surgetank_pool_core::id::{BenefactorId, Incarnation, Inode, SessionId, Version};
use surgetank_pool_core::meta::operation::{Operation, Refusal};
use surgetank_pool_core::meta::store::Lease;
use surgetank_pool_core::meta::value::{self, Attributes};
use surgetank_pool_core::meta::{Durability, Name};
use surgetank_pool_core::parity::Parity;
use surgetank_pool_core::placement::{self, Media};
use tonic::{Code, Status};

const ANSWER: Duration = Duration::from_secs(20);
const ONE_COPY: Durability = Durability::Copies { copies: 1, media: Media::Any };

/// What a token for the pool's target, or for one below it, says.
fn grant(target: &Path) -> Grant {
    Grant { target: target.display().to_string(), mount: None, owner: None, writes: true, expires: None }
}

fn with(pool: &Pool, grant: Grant) -> Access {
    Access::with(pool.credentials.key().token(&Claims::Mount(grant)))
}

async fn ask_manager(pool: &Pool, access: &Access, request: manager::Request) -> Result<manager::Reply, Status> {
    Peer::new(&pool.managers[0].address, access).unwrap().ask::<Manager>(request, ANSWER).await
}

async fn ask_benefactor(pool: &Pool, access: &Access, request: chunks::Request) -> Result<chunks::Reply, Status> {
    Peer::new(&pool.benefactors[0].address, access).unwrap().ask::<Benefactor>(request, ANSWER).await
}

/// Makes directories for mounts, and begins a session of one of them, without the client library.
async fn begin(pool: &Pool, name: &str, of: Grant) -> (Begun, Access) {
    let target = pool.target().join(name);
    std::fs::create_dir_all(&target).unwrap();
    let make = Some((target.display().to_string(), ONE_COPY));
    let begin = manager::Request::Begin(Begin { name: name.to_owned(), make });
    match ask_manager(pool, &with(pool, of), begin).await {
        Ok(manager::Reply::Begun(begun)) => {
            let access = Access::with(begun.token.clone());
            (begun, access)
        }
        other => panic!("{other:?}"),
    }
}

/// What a server answers to what no request can be read as, with this text for a token, or none.
async fn answered(address: &str, method: &'static str, token: Option<&str>) -> Status {
    raw::ask(address, method, (token, Some(PROTOCOL)), vec![0xff; 64]).await.unwrap_err()
}

#[test]
fn no_service_reads_a_request_without_a_token_of_the_pool() {
    run(async {
        let pool = Pool::new(1, 1, 8);
        let client = pool.client(1).await;
        let of_manager = [
            manager::Request::Join(lends()).method(),
            manager::Request::Renew(Lease(1)).method(),
            manager::Request::Status.method(),
            manager::Request::Leave(BenefactorId(0)).method(),
            manager::Request::Content(Inode(1)).method(),
        ];
        let of_benefactor = [
            chunks::Request::Probe.method(),
            chunks::Request::Inventory.method(),
            chunks::Request::Forget(News::default()).method(),
            "/surgetank.pool.Chunks/Put",
            "/surgetank.pool.Chunks/Get",
            "/surgetank.pool.Chunks/Draft",
            "/surgetank.pool.Chunks/DrainPart",
            "/surgetank.pool.Chunks/Rebuild",
            "/surgetank.pool.Chunks/DrainLost",
            "/surgetank.pool.Chunks/SendPart",
        ];
        let manager = of_manager.map(|method| (&pool.managers[0].address, method));
        let benefactor = of_benefactor.map(|method| (&pool.benefactors[0].address, method));
        let of = |key: &Key, claims: &Claims| key.token(claims).to_text().to_owned();
        let ours = pool.credentials.key();
        let foreign = of(&Key::generate().unwrap(), &Claims::Member);
        let expired = of(ours, &Claims::Mount(Grant { expires: Some(now() - 5), ..grant(&pool.target()) }));
        let mut damaged = of(ours, &Claims::Member);
        damaged.insert(20, 'A');
        let key = ours.to_text();
        for (address, method) in manager.into_iter().chain(benefactor) {
            let none = answered(address, method, None).await;
            assert_eq!(none.code(), Code::Unauthenticated, "{method}: {none}");
            assert!(none.message().starts_with("the pool wants a token"), "{none}");
            for token in [&foreign, &damaged, &key, ""] {
                let refused = answered(address, method, Some(token)).await;
                assert_eq!(refused.code(), Code::Unauthenticated, "{method} {token}");
                assert!(refused.message().contains("is not one of this pool"), "{refused}");
            }
            let refused = answered(address, method, Some(&expired)).await;
            assert_eq!(refused.code(), Code::PermissionDenied, "{method}");
            assert!(refused.message().contains("has expired") && refused.message().contains("pool token"), "{refused}");
            // With a token of the pool the request is read, and found to be none.
            let admitted = answered(address, method, Some(&of(ours, &Claims::Member))).await;
            assert_eq!(admitted.code(), Code::InvalidArgument, "{method}: {admitted}");
        }
        write(&client, "file", b"whoever was refused has done no harm").await.unwrap();
        // A client is told as well, at once.
        let config = Config::new(pool.addresses(), Access::member(&Key::generate().unwrap()), "");
        match PoolClient::ask_status(&config).await {
            Err(Error::NotAllowed(why)) => assert!(why.contains("is not one of this pool"), "{why}"),
            other => panic!("{other:?}"),
        }
    });
}

fn lends() -> value::Lends {
    value::Lends {
        place: placement::Place { id: BenefactorId(9), incarnation: Incarnation(0) },
        address: "127.0.0.1:1".to_owned(),
        domain: surgetank_pool_core::id::Domain(9),
        memory: surgetank_model::Bytes::from_mib(1),
        ssd: surgetank_model::Bytes::ZERO,
    }
}

#[track_caller]
fn denied<T: std::fmt::Debug>(what: &str, answer: Result<T, Status>) {
    match answer {
        Err(status) => assert_eq!(status.code(), Code::PermissionDenied, "{what}: {status}"),
        Ok(reply) => panic!("{what}: {reply:?}"),
    }
}

#[test]
fn a_mounts_token_reaches_its_own_target_alone() {
    run(async {
        let pool = Pool::new(1, 1, 16);
        drop(pool.client(1).await);
        let own = grant(&pool.target().join("own"));
        let (begun, session) = begin(&pool, "own", own.clone()).await;
        let (others, other) = begin(&pool, "other", grant(&pool.target())).await;
        until("the publishers of both are there, so that it can be looked at the targets", async || {
            ["own", "other"].iter().all(|name| pool.target().join(name).join(ASIDE).exists())
        })
        .await;
        // Mounts: another target, another name, one that is there already.
        for (name, target) in [("new", "other"), ("new", "own/../other"), ("other", "other"), ("new", "")] {
            let make = Some((pool.target().join(target).display().to_string(), ONE_COPY));
            let request = manager::Request::Begin(Begin { name: name.to_owned(), make });
            denied(target, ask_manager(&pool, &with(&pool, own.clone()), request).await);
        }
        let request = || manager::Request::Begin(Begin { name: "other".to_owned(), make: None });
        denied("without a target", ask_manager(&pool, &with(&pool, own.clone()), request()).await);
        let named = Grant { mount: Some("own".to_owned()), ..grant(&pool.target()) };
        denied("another name", ask_manager(&pool, &with(&pool, named), request()).await);
        // What members alone ask, with either token.
        for access in [&session, &with(&pool, own)] {
            denied("join", ask_manager(&pool, access, manager::Request::Join(lends())).await);
            denied("leave", ask_manager(&pool, access, manager::Request::Leave(BenefactorId(0))).await);
            denied("inventory", ask_benefactor(&pool, access, chunks::Request::Inventory).await);
            let of = (GroupOf { inode: Inode(1), group: 0 }, Version(1), SessionId(1));
            let file = pool.target().join("stolen").display().to_string();
            let part = DrainPart { incarnation: Incarnation(0), of, chunks: Vec::new(), offset: 0, file };
            let parity = Parity::new(4, 1).unwrap();
            let (lost, sources, file) = (Vec::new(), Vec::new(), part.file.clone());
            let made = DrainLost { of, parity, lost, sources, offset: 0, file };
            denied("drain", ask_benefactor(&pool, access, chunks::Request::DrainPart(part)).await);
            denied("made", ask_benefactor(&pool, access, chunks::Request::DrainLost(made)).await);
            let (pieces, sources, url) = (Vec::new(), Vec::new(), "http://127.0.0.1:1/stolen".to_owned());
            let sent = SendPart { incarnation: Incarnation(0), pieces, sources, url };
            denied("sent", ask_benefactor(&pool, access, chunks::Request::SendPart(sent)).await);
            let words = News { withdrawn: Vec::new(), words: Some(Default::default()) };
            denied("words", ask_benefactor(&pool, access, chunks::Request::Forget(words)).await);
        }
        // Another session's lease, and another mount's directory.
        denied("renew", ask_manager(&pool, &session, manager::Request::Renew(others.lease)).await);
        denied("end", ask_manager(&pool, &session, manager::Request::End(others.session, others.lease)).await);
        let lookup = |root: Inode| manager::Request::Lookup(root, value::Path::default());
        let answer = ask_manager(&pool, &session, lookup(begun.of.root)).await;
        assert!(matches!(answer, Ok(manager::Reply::Found(..))), "{answer:?}");
        for request in [
            lookup(others.of.root),
            manager::Request::ReadDir(others.of.root, value::Path::default(), None),
            manager::Request::Import(others.of.root, value::Path::default(), None),
            manager::Request::Content(others.of.root),
            manager::Request::Fetch(others.of.root, Version(1), 0, 1),
        ] {
            let answer = ask_manager(&pool, &session, request).await;
            assert!(matches!(answer, Ok(manager::Reply::Refused(Refusal::NotAllowed))), "{answer:?}");
        }
        let create = |by: &Begun, root: Inode, fresh: u64, number| {
            let writer = (by.session, by.lease);
            let at = (root, Name::new(format!("file{number}").as_bytes()).unwrap());
            let operation = Operation::Create { at, fresh, writer, owner: (0o644, 0, 0) };
            let once = Once { session: by.session, lease: by.lease, number, again: false };
            manager::Request::Do(operation, once)
        };
        let number =
            async |by: &Begun, access: &Access| match ask_manager(&pool, access, manager::Request::Numbers(by.lease))
                .await
            {
                Ok(manager::Reply::Numbers(first)) => first,
                answer => panic!("{answer:?}"),
            };
        let of_others = number(&others, &other).await;
        let fresh = number(&begun, &session).await;
        let answer = ask_manager(&pool, &other, create(&others, others.of.root, of_others, 1)).await;
        assert!(matches!(answer, Ok(manager::Reply::Ended(Ended::Reply(_)))), "{answer:?}");
        denied("in another's name", ask_manager(&pool, &session, create(&others, others.of.root, fresh, 2)).await);
        for (root, fresh) in [(others.of.root, fresh), (begun.of.root, of_others), (begun.of.root, NUMBERS - 1)] {
            let answer = ask_manager(&pool, &session, create(&begun, root, fresh, 3)).await;
            let refused = matches!(answer, Ok(manager::Reply::Ended(Ended::Refused(Refusal::NotAllowed))));
            assert!(refused, "{root} {fresh}: {answer:?}");
        }
        // Sent again, it is refused all the same.
        let manager::Request::Do(operation, once) = create(&begun, begun.of.root, of_others, 3) else { unreachable!() };
        let again = manager::Request::Do(operation, Once { again: true, ..once });
        let answer = ask_manager(&pool, &session, again).await;
        assert!(matches!(answer, Ok(manager::Reply::Ended(Ended::Refused(Refusal::NotAllowed)))), "{answer:?}");
        let answer = ask_manager(&pool, &session, create(&begun, begun.of.root, fresh, 4)).await;
        assert!(matches!(answer, Ok(manager::Reply::Ended(Ended::Reply(_)))), "{answer:?}");
    });
}

#[test]
fn chunks_are_written_in_ones_own_name_and_read_with_the_ticket_of_their_file() {
    run(async {
        let pool = Pool::new(1, 1, 16);
        drop(pool.client(1).await);
        let (begun, session) = begin(&pool, "own", grant(&pool.target().join("own"))).await;
        // Another mount's file, through the client library.
        let mut config = Config::new(pool.addresses(), with(&pool, grant(&pool.target())), "other");
        std::fs::create_dir(pool.target().join("other")).unwrap();
        config.make = Some((pool.target().join("other"), ONE_COPY));
        let client = PoolClient::begin(config).await.unwrap();
        let mut writer = client.create("secret").await.unwrap();
        writer.write(&bytes(1, MIB)).await.unwrap();
        writer.sync().await.unwrap();
        let inode = client.stat("secret").await.unwrap().inode;
        let Ok(manager::Reply::Content(Content { groups, ticket, .. })) =
            ask_manager(&pool, &pool.credentials.access(), manager::Request::Content(inode)).await
        else {
            panic!("a member reads it")
        };
        assert_eq!(ticket, Ticket::default(), "a member needs none");
        let (group, version, of) = &groups[0];
        let of = (GroupOf { inode, group: *group }, *version, of.by);
        let get =
            |ticket: Ticket| Get { incarnation: groups[0].2.layout.places()[0].incarnation, of, chunk: 0, ticket };
        let key = pool.credentials.key();
        let own_root = key.ticket(begun.session, begun.of.root);
        for ticket in [Ticket::default(), own_root, key.ticket(of.2, inode)] {
            denied("get", ask_benefactor(&pool, &session, chunks::Request::Get(get(ticket.clone()))).await);
            denied("table", ask_benefactor(&pool, &session, chunks::Request::Table(get(ticket))).await);
        }
        let ticket = key.ticket(begun.session, inode);
        let answer = ask_benefactor(&pool, &session, chunks::Request::Get(get(ticket))).await;
        assert!(matches!(answer, Ok(chunks::Reply::Chunk(..))), "who has its ticket reads it: {answer:?}");
        // Chunks and tables of another session.
        let content = bytes::Bytes::from_static(b"chunk");
        let entry =
            |session| Entry { instance: Instance { session, number: 1_000 }, length: 5, crc: crc32c::crc32c(&content) };
        let incarnation = get(Ticket::default()).incarnation;
        let put = |session| {
            let entry = entry(session);
            chunks::Request::Put(Put { incarnation, inode: Inode(NUMBERS), entry, bytes: content.clone() })
        };
        denied("put", ask_benefactor(&pool, &session, put(of.2)).await);
        let answer = ask_benefactor(&pool, &session, put(begun.session)).await;
        assert!(matches!(answer, Ok(chunks::Reply::Stored(_))), "{answer:?}");
        let draft =
            |session, inode| chunks::Request::Draft(Draft { incarnation, inode: Inode(inode), entry: entry(session) });
        denied("draft", ask_benefactor(&pool, &session, draft(of.2, NUMBERS)).await);
        // It is of no file, and forgotten whenever the warden looks.
        until("who has put it reads it", async || {
            let _ = ask_benefactor(&pool, &session, put(begun.session)).await;
            let answer = ask_benefactor(&pool, &session, draft(begun.session, NUMBERS)).await;
            matches!(answer, Ok(chunks::Reply::Chunk(..)))
        })
        .await;
        let answer = ask_benefactor(&pool, &session, draft(begun.session, NUMBERS + 1)).await;
        assert!(matches!(answer, Ok(chunks::Reply::NotHere)), "of another file: {answer:?}");
        let seal = Seal { incarnation, of, table: Default::default(), order: 0, durable: false };
        denied("seal", ask_benefactor(&pool, &session, chunks::Request::Seal(seal)).await);
        // The other file's chunk is not to be had by naming it in a table of one's own.
        let of_own = (GroupOf { inode: Inode(NUMBERS), group: 0 }, Version(1), begun.session);
        let Ok(chunks::Reply::Table(table)) =
            ask_benefactor(&pool, &pool.credentials.access(), chunks::Request::Table(get(Ticket::default()))).await
        else {
            panic!("a member reads it")
        };
        let seal = Seal { incarnation, of: of_own, table, order: 0, durable: false };
        let answer = ask_benefactor(&pool, &session, chunks::Request::Seal(seal)).await;
        assert!(matches!(answer, Ok(chunks::Reply::Missing(_))), "{answer:?}");
        let withdrawn = News { withdrawn: vec![entry(of.2).instance], words: None };
        denied("withdraw", ask_benefactor(&pool, &session, chunks::Request::Forget(withdrawn)).await);
        same("it is as it was", &read(&client, "secret").await.unwrap(), &bytes(1, MIB));
    });
}

#[test]
fn a_mounts_token_says_whose_files_are_whether_they_are_written_and_until_when() {
    run(async {
        let pool = Pool::new(1, 2, 16);
        let all = pool.client(2).await;
        write(&all, "there", b"before").await.unwrap();
        let of = |grant: Grant| {
            let mut config = pool.config(2);
            config.access = with(&pool, grant);
            config
        };
        let owned = PoolClient::begin(of(Grant { owner: Some((7, 8)), ..grant(&pool.target()) })).await.unwrap();
        let root = owned.stat("").await.unwrap().inode;
        let at = |name: &str| (root, Name::new(name.as_bytes()).unwrap());
        for owner in [(0o4755, 0, 0), (0o644, 7, 0), (0o644, 0, 8)] {
            let refused = owned.create_at(at("file"), "file", owner).await.err();
            assert_eq!(refused, Some(Error::Refused("file".to_owned(), Refusal::NotAllowed)));
        }
        owned.create_at(at("file"), "file", (0o644, 7, 8)).await.unwrap().close().await.unwrap();
        let inode = owned.stat("file").await.unwrap().inode;
        let given = |user| Attributes { user: Some(user), ..Attributes::default() };
        assert!(owned.set_attributes(inode, given(0), "file").await.is_err(), "nor given away");
        assert!(owned.set_attributes(inode, given(7), "file").await.is_ok());
        let reader = PoolClient::begin(of(Grant { writes: false, ..grant(&pool.target()) })).await.unwrap();
        assert_eq!(read(&reader, "there").await.unwrap(), b"before");
        let refused = Some(Error::Refused("new".to_owned(), Refusal::NotAllowed));
        assert_eq!(reader.create("new").await.err(), refused);
        assert!(reader.append("there").await.is_err() && reader.unlink("there").await.is_err());
        // A session's own token expires with the one that it began with.
        let until = now() + 3600;
        let of = Grant { owner: Some((7, 8)), expires: Some(until), ..grant(&pool.target()) };
        let (begun, _) = begin(&pool, "brief", of).await;
        let key = pool.credentials.key();
        match key.check(Some(begun.token.to_text()), until - 1, &Revoked::default()) {
            Ok(Claims::Session(session)) => {
                assert_eq!((session.session, session.mount), (begun.session, begun.mount));
                assert_eq!((session.owner, session.writes, session.trusted), (Some((7, 8)), true, false));
            }
            other => panic!("{other:?}"),
        }
        assert!(key.check(Some(begun.token.to_text()), until, &Revoked::default()).is_err());
        assert_eq!(read(&all, "there").await.unwrap(), b"before");
    });
}

#[test]
fn the_key_is_made_once_and_is_refused_if_others_can_read_it() {
    let directory = tempfile::tempdir().unwrap();
    let made = Credentials::of_directory(directory.path(), None).unwrap();
    let path = directory.path().join(files::KEY_FILE);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let again = Credentials::of_directory(directory.path(), None).unwrap();
    assert_eq!(made.key().to_text(), again.key().to_text());
    let sentence = |found: Result<Access, NoSecret>| found.unwrap_err().0;
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    assert!(sentence(Access::read(&path)).contains("can be read by others than its owner (its mode is 0640)"));
    assert!(Credentials::of_directory(directory.path(), None).is_err(), "and it is not replaced");
    let file = directory.path().join("token");
    assert!(sentence(Access::read(&file)).contains("ask whoever runs the pool for a token"));
    let token = made.key().token(&Claims::Mount(grant(directory.path())));
    files::write_private(&file, token.to_text()).unwrap();
    assert!(Access::read(&file).is_ok());
    assert!(Credentials::read(&file, None).unwrap_err().0.contains("managers and benefactors need the pool's key"));
    std::fs::write(&file, "what is no token").unwrap();
    let told = sentence(Access::read(&file));
    assert!(told.contains("neither a key nor a token") && !told.contains("what is no token"), "{told}");
}

#[test]
fn a_server_of_another_user_on_loopback_is_shown_no_token() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let credentials = Credentials::of_directory(directory.path(), None).unwrap();
        // A whole manager, but of another user: only this thread becomes nobody.
        let served = credentials.clone();
        let store = directory.path().join("store");
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let server = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let entered = runtime.enter();
            let store = std::sync::Arc::new(surgetank_pool::meta::Embedded::open(&store).unwrap());
            drop(entered);
            let nobody = rustix::process::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            runtime.block_on(async {
                let listener = Listener::bind("127.0.0.1:0", &served).unwrap();
                tell.send(listener.address().unwrap().to_string()).unwrap();
                let stopped = tokio::task::spawn_blocking(move || stopped.recv());
                tokio::select! {
                    ended = manager::run(manager::Config::default(), store, listener) => panic!("{ended:?}"),
                    _ = stopped => {}
                }
            });
        });
        let address = told.recv().unwrap();
        let key = directory.path().join(files::KEY_FILE);
        let ask = async |access: Access| {
            let mut config = Config::new(vec![address.clone()], access, "");
            config.timeout = Duration::from_millis(100);
            PoolClient::ask_status(&config).await
        };
        match ask(Access::read(&key).unwrap()).await {
            Err(Error::Managers(why)) => assert!(why.contains("is served by user 65534"), "{why}"),
            other => panic!("{other:?}"),
        }
        // Whoever owns the file knows the key anyway.
        std::os::unix::fs::chown(&key, Some(NOBODY), None).unwrap();
        let status = ask(Access::read(&key).unwrap()).await;
        assert!(status.is_ok(), "{status:?}");
        stop.send(()).unwrap();
        server.join().unwrap();
    });
}

#[test]
fn an_address_beyond_loopback_wants_certificates() {
    run(async {
        let credentials = Credentials::new(Key::generate().unwrap());
        for address in ["0.0.0.0:0", "192.0.2.1:7440"] {
            let refused = Listener::bind(address, &credentials).err().unwrap().to_string();
            assert!(refused.contains("is not a loopback address") && refused.contains("--certificates"), "{refused}");
            assert_eq!(Peer::new(address, &credentials.access()).unwrap_err().to_string(), refused);
        }
    });
}

#[test]
fn a_token_that_was_taken_back_lets_nobody_in_nor_its_sessions_and_others_stay() {
    run(async {
        let mut pool = Pool::new(2, 1, 24);
        let (target, key) = (pool.target(), pool.credentials.key().clone());
        let expiring =
            |seconds: u64| key.token(&Claims::Mount(Grant { expires: Some(now() + seconds), ..grant(&target) }));
        let (token, other) = (expiring(3600), expiring(7200));
        let of = |token: &surgetank_pool::security::token::Token| Config {
            access: Access::with(token.clone()),
            ..pool.config(1)
        };
        let (mine, theirs) = (pool.client_of(of(&token)).await, pool.client_of(of(&other)).await);
        write(&mine, "mine", &bytes(1, MIB)).await.unwrap();
        let mut reader = mine.open("mine").await.unwrap();
        same("before", &reader.read_at(0, MIB).await.unwrap(), &bytes(1, MIB));
        let (mine_of, theirs_of) = (of(&token), of(&other));
        PoolClient::revoke(&pool.config(1), token.number()).await.unwrap();
        let is_refused =
            |status: &Status| status.code() == Code::PermissionDenied && status.message().contains("taken back");
        let access = Access::with(token.clone());
        until("the benefactor lets it in no more", async || {
            // Whether the request makes sense is looked at later.
            let refused = ask_benefactor(&pool, &access, chunks::Request::Probe).await.unwrap_err();
            is_refused(&refused)
        })
        .await;
        for manager in &pool.managers {
            until("neither does a manager", async || {
                let peer = Peer::new(&manager.address, &access).unwrap();
                peer.ask::<Manager>(manager::Request::Status, ANSWER).await.is_err_and(|status| is_refused(&status))
            })
            .await;
        }
        // Its session ends with it.
        let wrote = write(&mine, "more", b"more").await;
        assert!(matches!(&wrote, Err(Error::NotAllowed(..))), "{wrote:?}");
        let reread = mine.open("mine").await;
        assert!(reread.is_err(), "its session reads on");
        assert!(PoolClient::begin(mine_of.clone()).await.is_err());
        // What it had closed drains on, and others go on.
        theirs.wait_drained("mine", LONG).await.unwrap();
        write(&theirs, "theirs", b"theirs").await.unwrap();
        theirs.wait_drained("theirs", LONG).await.unwrap();
        // A restart changes nothing of it.
        (0..2).for_each(|at| pool.managers[at].kill());
        (0..2).for_each(|at| pool.restart_manager(at));
        pool.restart_benefactor(0);
        let refused = PoolClient::begin(mine_of).await.map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("taken back"), "{refused}");
        let again = PoolClient::begin(theirs_of).await.unwrap();
        same("others", &read(&again, "theirs").await.unwrap(), b"theirs");
    });
}

/// The answer to a refusal may be lost: what was refused did not take place, however often it is asked.
#[test]
fn what_was_refused_is_refused_again_and_never_counts_as_done() {
    run(async {
        let pool = Pool::new(2, 1, 16);
        let (begun, session) = begin(&pool, "own", grant(&pool.target().join("own"))).await;
        let Ok(manager::Reply::Numbers(fresh)) =
            ask_manager(&pool, &session, manager::Request::Numbers(begun.lease)).await
        else {
            panic!("it has numbers")
        };
        let ask = async |manager: usize, number: u64, again: bool| {
            let writer = (begun.session, begun.lease);
            let at = (begun.of.root, Name::new(b"file").unwrap());
            let operation = Operation::Create { at, fresh: fresh + number, writer, owner: (0o644, 0, 0) };
            let once = Once { session: begun.session, lease: begun.lease, number, again };
            let peer = Peer::new(&pool.managers[manager].address, &session).unwrap();
            peer.ask::<Manager>(manager::Request::Do(operation, once), ANSWER).await
        };
        let answer = ask(0, 1, false).await;
        assert!(matches!(answer, Ok(manager::Reply::Ended(Ended::Reply(_)))), "{answer:?}");
        let answer = ask(1, 1, true).await;
        assert!(matches!(answer, Ok(manager::Reply::Ended(Ended::Before))), "{answer:?}");
        for manager in [1, 0, 1] {
            let answer = ask(manager, 2, true).await;
            assert!(matches!(answer, Ok(manager::Reply::Ended(Ended::Refused(Refusal::Exists)))), "{answer:?}");
        }
        // Nor does it take place once nothing is in its way.
        let unlink = Operation::Unlink { at: (begun.of.root, Name::new(b"file").unwrap()), journal: fresh + 3 };
        let once = Once { session: begun.session, lease: begun.lease, number: 3, again: false };
        let answer = ask_manager(&pool, &session, manager::Request::Do(unlink, once)).await;
        assert!(matches!(answer, Ok(manager::Reply::Ended(Ended::Reply(_)))), "{answer:?}");
        for again in [true, false] {
            let answer = ask(0, 2, again).await;
            assert!(matches!(answer, Ok(manager::Reply::Ended(Ended::Refused(Refusal::Exists)))), "{answer:?}");
        }
    });
}
