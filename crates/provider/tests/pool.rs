//! The contract, on volumes in a staging pool of which this process runs a whole one; and what is particular to them.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_pool::local::{self, Local};
use surgetank_provider::contract::{self, Subject, request};
use surgetank_provider::{CreateVolume, PoolConfig, PoolProvider, Provider, ProviderError, VolumeState};
use tempfile::TempDir;

struct World {
    pool: Local,
    directory: TempDir,
}

impl World {
    fn new(benefactors: u32, memory_mib: u64) -> Self {
        let directory = TempDir::new().unwrap();
        let (at, memory) = (directory.path().join("pool"), Bytes::from_mib(memory_mib));
        let pool = Local::start(&local::Config::of_memory(at, "127.0.0.1:0", benefactors, memory)).unwrap();
        pool.wait_joined(benefactors as usize, Duration::from_secs(60)).unwrap();
        std::fs::create_dir(directory.path().join("target")).unwrap();
        Self { pool, directory }
    }

    fn config(&self) -> PoolConfig {
        PoolConfig {
            address: format!("pool://{}", self.pool.address()),
            token_file: self.directory.path().join("pool/key"),
            target: self.directory.path().join("target"),
            ..PoolConfig::default()
        }
    }

    fn provider(&self) -> PoolProvider {
        PoolProvider::open(self.config()).unwrap()
    }
}

impl Subject for World {
    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(self.provider())
    }

    fn pass_time(&self) {
        std::thread::sleep(Duration::from_millis(10));
    }

    fn rentable(&self) -> (String, Bytes) {
        ("fast".to_owned(), Bytes::from_mib(1))
    }
}

fn of(token: &str, mib: u64) -> CreateVolume {
    CreateVolume { size: Bytes::from_mib(mib), ..request(token) }
}

#[test]
fn contract_of_volumes_in_a_pool() {
    contract::run(&World::new(2, 48));
}

#[test]
fn what_the_pool_has_no_room_for_is_not_rented_and_a_deletion_frees_it() {
    let world = World::new(2, 48);
    let provider = world.provider();
    let (first, _) = provider.create(&of("first", 32)).unwrap();
    for mib in [32, 1 << 20] {
        let refused = provider.create(&of("second", mib));
        assert!(matches!(&refused, Err(ProviderError::Capacity(why)) if why.contains("no room")), "{refused:?}");
    }
    assert_eq!(provider.list("k", "v").unwrap(), std::slice::from_ref(&first));
    provider.delete(&first.id).unwrap();
    provider.create(&of("second", 32)).unwrap();
}

#[test]
fn copies_that_would_lie_together_are_not_rented() {
    let world = World::new(1, 48);
    let refused = world.provider().create(&of("one", 1));
    assert!(matches!(&refused, Err(ProviderError::Capacity(why)) if why.contains("2 copies")), "{refused:?}");
    let single = PoolConfig { durable: "copies=1".to_owned(), ..world.config() };
    let refused = PoolProvider::open(single).unwrap().create(&of("one", 1));
    // The mount was made with two copies.
    assert!(matches!(&refused, Err(ProviderError::Invalid(why)) if why.contains("copies=2")), "{refused:?}");
}

#[test]
fn a_pool_that_does_not_answer_is_a_transient_error() {
    let world = World::new(1, 24);
    let config = PoolConfig { timeout: surgetank_model::units::Span(Duration::from_secs(1)), ..world.config() };
    let World { pool, directory } = world;
    drop(pool);
    let provider = PoolProvider::open(config).unwrap();
    let answer = provider.list("k", "v");
    assert!(matches!(answer, Err(ProviderError::Transient(_))), "{answer:?}");
    drop(directory);
}

#[test]
fn a_record_outlives_all_benefactors_so_that_the_volume_is_found_and_deleted() {
    let world = World::new(2, 48);
    let (volume, _) = world.provider().create(&of("one", 8)).unwrap();
    world.provider().attach(&volume.id).unwrap();
    (0..2).for_each(|number| assert!(world.pool.kill_benefactor(number)));
    let provider = world.provider();
    let found = provider.list("k", "v").unwrap();
    assert_eq!((found[0].id.clone(), found[0].state), (volume.id.clone(), VolumeState::Attached));
    provider.detach(&volume.id).unwrap();
    provider.delete(&volume.id).unwrap();
    assert_eq!(provider.describe(&volume.id), Err(ProviderError::NotFound(volume.id)));
}
