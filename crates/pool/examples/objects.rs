//! How fast a pool drains to a store that speaks S3, beside a plain multipart upload to the same store in the same run, in one JSON document. The environment
//! says how to reach the store (`AWS_ENDPOINT_URL` and so on), and the bucket is there.
//!
//!     cargo run --release --package surgetank-pool --example objects -- s3://BUCKET/PREFIX [MIB] [ROUNDS]

#![allow(clippy::print_stdout, reason = "the numbers are the result")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, WriteMultipart};
use surgetank_model::Bytes;
use surgetank_model::random::Random;
use surgetank_pool::bucket::PART;
use surgetank_pool::client::{Config, PoolClient};
use surgetank_pool::local::{self, Local};
use surgetank_pool::security::{Credentials, files};
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::placement::Media;
use tokio::runtime::Runtime;

type Failed = Box<dyn std::error::Error>;

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(600);
/// Benefactors of the pool, and parts that the plain upload has under way: as many as a drain has.
const BENEFACTORS: u32 = 3;
const PARTS: usize = 8;

/// Bytes that no store makes fewer of.
fn content(mib: usize) -> bytes::Bytes {
    let mut random = Random::from_seed(11);
    (0..mib * MIB / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect::<Vec<u8>>().into()
}

/// A plain multipart upload, from memory; MiB in a second.
async fn plain(store: &Arc<dyn ObjectStore>, at: &Path, content: &bytes::Bytes) -> Result<f64, Failed> {
    let began = Instant::now();
    let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(at).await?, PART as usize);
    for first in (0..content.len()).step_by(PART as usize) {
        upload.wait_for_capacity(PARTS).await?;
        upload.put(content.slice(first..content.len().min(first + PART as usize)));
    }
    upload.finish().await?;
    let rate = (content.len() / MIB) as f64 / began.elapsed().as_secs_f64();
    store.delete(at).await?;
    Ok(rate)
}

/// Writes into the pool, and waits until the store has it: MiB in a second from the first byte on, and from the close on.
async fn drained(client: &PoolClient, name: &str, content: &bytes::Bytes) -> Result<(f64, f64), Failed> {
    let (mib, began) = ((content.len() / MIB) as f64, Instant::now());
    let mut writer = client.create(name).await?;
    writer.write_bytes_at(0, content).await?;
    writer.close().await?;
    let closed = Instant::now();
    client.wait_drained(name, LONG).await?;
    let rates = (mib / began.elapsed().as_secs_f64(), mib / closed.elapsed().as_secs_f64());
    client.unlink(name).await?;
    while client.status().await?.journal > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(rates)
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().ok_or("name a bucket")?;
    let mib: usize = arguments.next().map_or(Ok(512), |mib| mib.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(3), |rounds| rounds.parse())?;
    let (bucket, prefix) =
        target.strip_prefix("s3://").and_then(|rest| rest.split_once('/')).ok_or("s3://BUCKET/PREFIX")?;
    // The plain client needs one before the pool has begun.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = ClientOptions::new().with_allow_http(true).with_timeout(LONG);
    let store = AmazonS3Builder::from_env().with_client_options(options).with_bucket_name(bucket).build()?;
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    let at = Path::from(format!("{prefix}.plain"));
    let directory = tempfile::tempdir()?;
    let memory = Bytes::from_mib(mib as u64 / u64::from(BENEFACTORS) * 2 + 96);
    let pool = local::Config::of_memory(directory.path().to_owned(), "127.0.0.1:0", BENEFACTORS, memory);
    let pool = Local::start(&pool)?;
    let credentials = Credentials::read(&directory.path().join(files::KEY_FILE), None)?;
    let mut config = Config::new(vec![pool.address().to_owned()], credentials.access(), &target);
    config.make = Some((PathBuf::from(&target), Durability::Copies { copies: 1, media: Media::Any }));
    let content = content(mib);
    let lines = Runtime::new()?.block_on(async {
        let client = PoolClient::begin(config).await?;
        // The first of everything makes connections.
        plain(&store, &at, &content.slice(..PART as usize)).await?;
        drained(&client, "first", &content.slice(..PART as usize)).await?;
        let mut lines = Vec::new();
        for round in 0..rounds {
            let before = plain(&store, &at, &content).await?;
            let (all, drain) = drained(&client, &format!("file{round}"), &content).await?;
            let after = plain(&store, &at, &content).await?;
            let mean = f64::midpoint(before, after);
            lines.push(format!(
                "{{\"plain_mib_s\": [{before:.1}, {after:.1}], \"drain_mib_s\": {drain:.1}, \"with_write_mib_s\": {all:.1}, \"ratio\": {:.2}}}",
                drain / mean
            ));
        }
        Ok::<_, Failed>(lines)
    })?;
    println!("{{\"mib\": {mib}, \"benefactors\": {BENEFACTORS}, \"rounds\": [{}]}}", lines.join(",\n "));
    pool.end()?;
    Ok(())
}
