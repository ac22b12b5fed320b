//! What lies at a target, through the client library: others change it meanwhile, it is gone, it is not the token's.

use std::os::unix::fs::{FileTypeExt, MetadataExt, chown};
use std::time::Duration;

use crate::support::{LONG, MIB, Pool, bytes, read, run, same, until, write};
use surgetank_pool::client::{Error, PoolClient};
use surgetank_pool::security::Access;
use surgetank_pool::security::token::{Claims, Grant};
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::meta::value::{Path, Special, SpecialKind};
use surgetank_pool_core::meta::{FileState, Name};

async fn settled(client: &PoolClient) {
    until("the journal is empty", async || client.status().await.unwrap().journal == 0).await;
}

fn path(name: &str) -> Path {
    Path(name.split('/').map(|name| Name::new(name.as_bytes()).unwrap()).collect())
}

fn is_refused<T>(result: Result<T, Error>, with: &Refusal) -> bool {
    matches!(result.err(), Some(Error::Refused(_, refusal)) if refusal == *with)
}

#[test]
fn the_root_of_a_mount_is_the_targets_when_it_is_mounted_first() {
    run(async {
        let pool = Pool::new(1, 1, 8);
        let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(pool.target(), mode(0o2775)).unwrap();
        let owned = chown(pool.target(), Some(7), Some(8)).is_ok();
        std::fs::set_permissions(pool.target(), mode(0o2775)).unwrap();
        let client = pool.client(1).await;
        let owner = client.stat("").await.unwrap().owner;
        let found = std::fs::metadata(pool.target()).unwrap();
        assert_eq!(owner, (0o755, found.uid(), found.gid()), "nobody else writes there");
        assert!(!owned || (owner.1, owner.2) == (7, 8));
        // From then on it is the mount's own.
        std::fs::set_permissions(pool.target(), mode(0o700)).unwrap();
        assert_eq!(client.stat("").await.unwrap().owner, owner);
    });
}

#[test]
fn the_mask_of_an_access_list_gives_the_group_nothing() {
    run(async {
        let pool = Pool::new(1, 1, 8);
        // Linux's form (`posix_acl_xattr.h`): the owner and one user have all, the group has nothing, and the mask has all.
        let entry = |tag: u16, rights: u16, id: u32| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let (nobody, version) = (u32::MAX, 2_u32.to_le_bytes().to_vec());
        let list = [(1, 7, nobody), (2, 7, 4321), (4, 0, nobody), (16, 7, nobody), (32, 0, nobody)];
        let list = list.map(|(tag, rights, id)| entry(tag, rights, id));
        let list = std::iter::once(version).chain(list).collect::<Vec<_>>().concat();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(pool.target(), "system.posix_acl_access", &list, flags).unwrap();
        assert_eq!(std::fs::metadata(pool.target()).unwrap().mode() & 0o777, 0o770);
        assert_eq!(pool.client(1).await.stat("").await.unwrap().owner.0, 0o700);
    });
}

#[test]
fn a_new_pool_over_an_old_target_has_everything() {
    run(async {
        let (big, small) = (bytes(1, 5 * MIB + 3), bytes(2, 100));
        let old = Pool::new(1, 2, 48);
        let client = old.client(2).await;
        client.make_directory("run").await.unwrap();
        client.make_directory("run/1").await.unwrap();
        write(&client, "run/1/big", &big).await.unwrap();
        write(&client, "run/small", &small).await.unwrap();
        settled(&client).await;
        client.end().await.unwrap();

        let new = Pool::new(1, 2, 48);
        let mut config = new.config(2);
        config.make = config.make.map(|(_, durability)| (old.target(), durability));
        let client = new.client_of(config).await;
        let names = |entries: Vec<(Name, _)>| entries.into_iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(client.read_directory("").await.unwrap()), ["run"]);
        assert_eq!(names(client.read_directory("run").await.unwrap()), ["1", "small"]);
        let files = async || client.status().await.unwrap().files.iter().sum::<u64>();
        assert_eq!(files().await, 0, "a look costs no key");
        same("big", &read(&client, "run/1/big").await.unwrap(), &big);
        let mut writer = client.append("run/small").await.unwrap();
        writer.write(b"more").await.unwrap();
        writer.close().await.unwrap();
        client.rename("run/1/big", "big").await.unwrap();
        client.remove_directory("run/1").await.unwrap();
        settled(&client).await;
        same("appended", &std::fs::read(old.target().join("run/small")).unwrap(), &[&small[..], b"more"].concat());
        same("moved", &std::fs::read(old.target().join("big")).unwrap(), &big);
        assert!(!old.target().join("run/1").exists());
        client.end().await.unwrap();
    });
}

#[test]
fn what_others_change_after_the_import_is_not_overwritten() {
    run(async {
        let pool = Pool::new(2, 2, 48);
        let client = pool.client(1).await;
        let at = |name: &str| pool.target().join(name);
        let theirs = |name: &str, text: &str| std::fs::write(at(name), text).unwrap();

        // Of many who import at the same time, through either manager, one does.
        theirs("file", "first");
        let mut imports = tokio::task::JoinSet::new();
        for turn in 0..8 {
            let mut config = pool.config(1);
            config.managers.rotate_left(turn % 2);
            imports.spawn(async move {
                let client = PoolClient::begin(config).await.unwrap();
                client.import(client.root(), &path("file"), None, "file").await.unwrap().inode
            });
        }
        let imported = imports.join_all().await;
        assert!(imported.iter().all(|inode| *inode == imported[0]), "{imported:?}");

        // Changed after the import: written, moved or removed in the pool, theirs stays.
        let mut writer = client.append("file").await.unwrap();
        writer.write(b" of the pool").await.unwrap();
        theirs("file", "theirs");
        writer.close().await.unwrap();
        settled(&client).await;
        assert_eq!(client.stat("file").await.unwrap().state, Some(FileState::Conflict));
        assert_eq!(std::fs::read(at("file")).unwrap(), b"theirs");
        same("in the pool", &read(&client, "file").await.unwrap(), b"first of the pool");
        for name in ["moved", "removed"] {
            theirs(name, "first");
            client.import(client.root(), &path(name), None, name).await.unwrap();
            theirs(name, "changed");
        }
        client.rename("moved", "elsewhere").await.unwrap();
        client.unlink("removed").await.unwrap();
        settled(&client).await;
        assert!(!at("elsewhere").exists());
        for name in ["moved", "removed"] {
            assert_eq!(std::fs::read(at(name)).unwrap(), b"changed");
            assert!(client.stat(name).await.unwrap().at_target, "{name} is seen again as theirs");
        }

        // What is there is in the way of what is made, links and special files as well.
        std::os::unix::fs::symlink("/etc", at("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::RWXU).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("directory/fifo"), rustix::fs::Mode::RWXU).unwrap();
        let file = client.stat("file").await.unwrap().inode;
        let fifo = Special { what: SpecialKind::Fifo, device: 0 };
        for name in ["removed", "link", "fifo", "directory"] {
            let at = || (client.root(), Name::new(name.as_bytes()).unwrap());
            assert!(is_refused(client.create(name).await, &Refusal::Exists), "{name}");
            assert!(is_refused(client.make_directory(name).await, &Refusal::Exists), "{name}");
            assert!(is_refused(client.link_node(file, at(), name).await, &Refusal::Exists), "{name}");
            let made = client.make_special_at(at(), fifo, name, (0o600, 0, 0)).await;
            assert!(is_refused(made, &Refusal::Exists), "{name}");
        }
        assert!(is_refused(client.remove_directory("directory").await, &Refusal::NotEmpty));
        assert_eq!(client.stat("fifo").await.unwrap().special, Some(fifo));
        client.rename("fifo", "renamed").await.unwrap();
        client.unlink("directory/fifo").await.unwrap();
        client.remove_directory("directory").await.unwrap();
        assert!(is_refused(client.stat("link/hostname").await, &Refusal::NotFound), "links are not followed");
        assert_eq!(client.stat("link").await.unwrap().link, Some(b"/etc".to_vec()));
        client.unlink("link").await.unwrap();
        settled(&client).await;
        for name in ["link", "fifo", "directory"] {
            assert!(std::fs::symlink_metadata(at(name)).is_err(), "{name}");
        }
        assert!(std::fs::symlink_metadata(at("renamed")).unwrap().file_type().is_fifo());
        client.end().await.unwrap();
    });
}

#[test]
fn what_has_moved_is_read_as_itself_before_the_target_has_moved_it() {
    run(async {
        let pool = Pool::new(1, 2, 48);
        let client = pool.client(1).await;
        for at in 0..30 {
            for name in ["from", "to"] {
                std::fs::write(pool.target().join(format!("{name}{at}")), &name.as_bytes().repeat(2)[..4]).unwrap();
            }
        }
        for at in 0..30 {
            let (from, to) = (format!("from{at}"), format!("to{at}"));
            client.rename(&from, &to).await.unwrap();
            // Of as many bytes as what the target still has there.
            same(&to, &read(&client, &to).await.unwrap(), b"from");
            let mut writer = client.append(&to).await.unwrap();
            writer.write(b" on").await.unwrap();
            writer.close().await.unwrap();
        }
        settled(&client).await;
        for at in 0..30 {
            same("at the target", &std::fs::read(pool.target().join(format!("to{at}"))).unwrap(), b"from on");
        }
        client.end().await.unwrap();
    });
}

#[test]
fn a_target_that_is_gone_is_not_an_empty_one() {
    run(async {
        let pool = Pool::new(1, 2, 48);
        let mut config = pool.config(1);
        config.timeout = Duration::from_secs(3);
        let (hasty, client) = (pool.client_of(config).await, pool.client(1).await);
        write(&client, "own", b"own").await.unwrap();
        client.wait_drained("own", LONG).await.unwrap();
        std::fs::write(pool.target().join("theirs"), "theirs").unwrap();
        assert!(client.stat("theirs").await.unwrap().at_target);
        let away = pool.directory.path().join("away");
        for is_empty in [false, true] {
            std::fs::rename(pool.target(), &away).unwrap();
            if is_empty {
                // The mount point of a file system that is not mounted.
                std::fs::create_dir(pool.target()).unwrap();
            }
            same("the pool's own", &read(&client, "own").await.unwrap(), b"own");
            for name in ["theirs", "new"] {
                let seen = hasty.stat(name).await;
                assert!(matches!(seen, Err(Error::Managers(_))), "{name}: {seen:?}");
                assert!(hasty.create(name).await.is_err(), "{name}: nobody knows whether it is there");
            }
            assert!(hasty.read_directory("").await.is_err(), "not without what the target has");
            if is_empty {
                std::fs::remove_dir(pool.target()).unwrap();
            }
            std::fs::rename(&away, pool.target()).unwrap();
            assert!(client.stat("theirs").await.unwrap().at_target);
        }
        assert!(is_refused(client.create("theirs").await, &Refusal::Exists));
        write(&client, "new", b"new").await.unwrap();
        client.wait_drained("new", LONG).await.unwrap();
        client.end().await.unwrap();
    });
}

#[test]
fn an_owners_token_changes_what_is_the_owners() {
    run(async {
        let pool = Pool::new(1, 2, 16);
        let of = |owner, writes| {
            let target = pool.target().display().to_string();
            let grant = Grant { target, mount: None, owner, writes, expires: None };
            let mut config = pool.config(1);
            config.access = Access::with(pool.credentials.key().token(&Claims::Mount(grant)));
            config
        };
        for (name, owner) in [("own", 7), ("roots", 0)] {
            std::fs::write(pool.target().join(name), name).unwrap();
            chown(pool.target().join(name), Some(owner), Some(owner)).unwrap();
        }
        let owned = pool.client_of(of(Some((7, 8)), true)).await;
        assert!(owned.stat("roots").await.unwrap().at_target, "it is seen");
        for refused in [
            owned.append("roots").await.map(|_| ()),
            owned.unlink("roots").await,
            owned.rename("roots", "mine").await,
            owned.rename("own", "roots").await,
        ] {
            assert!(is_refused(refused, &Refusal::NotAllowed));
        }
        owned.rename("own", "mine").await.unwrap();
        settled(&owned).await;
        assert_eq!(std::fs::metadata(pool.target().join("mine")).unwrap().uid(), 7);
        assert_eq!(std::fs::read(pool.target().join("roots")).unwrap(), b"roots");
        let reader = PoolClient::begin(of(None, false)).await.unwrap();
        assert!(reader.stat("roots").await.unwrap().at_target);
        assert!(is_refused(reader.unlink("roots").await, &Refusal::NotAllowed));
        assert!(is_refused(reader.append("roots").await, &Refusal::NotAllowed));
        let imported = reader.import(reader.root(), &path("roots"), None, "roots").await;
        assert!(is_refused(imported, &Refusal::NotAllowed), "so that it is not locked either");
    });
}
