//! Whole files, written, read and compared.

use surgetank_pool::client::{self, PoolClient};

use super::{LONG, Pool, same};

/// Appends to a file and closes it.
pub async fn append(client: &PoolClient, path: &str, more: &[u8]) {
    let mut writer = client.append(path).await.unwrap();
    writer.write(more).await.unwrap();
    writer.close().await.unwrap();
}

/// Writes a file and closes it.
pub async fn write(client: &PoolClient, path: &str, content: &[u8]) -> Result<(), client::Error> {
    let mut writer = client.create(path).await?;
    writer.write(content).await?;
    writer.close().await
}

/// The target has a file, with these bytes.
pub async fn drained(pool: &Pool, client: &PoolClient, path: &str, content: &[u8]) {
    client.wait_drained(path, LONG).await.expect("it is drained");
    same(path, &std::fs::read(pool.target().join(path)).expect("it is there"), content);
}

/// Reads a whole file.
pub async fn read(client: &PoolClient, path: &str) -> Result<Vec<u8>, client::Error> {
    client.open(path).await?.read_all().await
}
