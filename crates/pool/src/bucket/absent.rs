//! Without the feature `objects` there is no bucket.

use std::convert::Infallible;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;

use bytes::Bytes;

use super::{Address, Children, Found, Key, Options, Put};

fn absent() -> Error {
    Error::new(ErrorKind::Unsupported, "this program was built without object stores")
}

/// There is none.
#[derive(Clone, Debug)]
pub struct Web(Infallible);

#[allow(missing_docs, clippy::missing_errors_doc, clippy::unused_async, reason = "nobody has one")]
impl Web {
    pub fn new() -> Result<Self> {
        Err(absent())
    }

    pub async fn put(&self, _: &str, _: Bytes) -> Result<String> {
        match self.0 {}
    }
}

/// There is none.
#[derive(Debug)]
pub struct Bucket(Infallible);

#[allow(missing_docs, clippy::missing_errors_doc, clippy::unused_async, reason = "nobody has one")]
impl Bucket {
    pub fn open(_: Address, _: &Options) -> Result<Self> {
        Err(absent())
    }

    pub fn address(&self) -> &Address {
        match self.0 {}
    }

    pub fn key<'a>(&self, _: impl IntoIterator<Item = &'a [u8]>) -> Result<Key> {
        match self.0 {}
    }

    pub async fn head(&self, _: &Key) -> Result<Option<Found>> {
        match self.0 {}
    }

    pub async fn get(&self, _: &Key, _: Range<u64>, _: Option<&str>) -> Result<(Found, Bytes)> {
        match self.0 {}
    }

    pub async fn text(&self, _: &Key) -> Result<Option<(String, Found)>> {
        match self.0 {}
    }

    pub async fn put(&self, _: &Key, _: Bytes, _: Put<'_>, _: &[(String, String)]) -> Result<()> {
        match self.0 {}
    }

    pub async fn delete(&self, _: &Key) -> Result<()> {
        match self.0 {}
    }

    pub async fn copy(&self, _: &Key, _: &Key) -> Result<()> {
        match self.0 {}
    }

    pub async fn begin_as(&self, _: &Key, _: &Key) -> Result<String> {
        match self.0 {}
    }

    pub async fn children(&self, _: &Key) -> Result<Children> {
        match self.0 {}
    }

    pub async fn has_below(&self, _: &Key) -> Result<bool> {
        match self.0 {}
    }

    pub async fn below(&self, _: &Key, _: usize) -> Result<Vec<(Key, Found)>> {
        match self.0 {}
    }

    pub async fn begin(&self, _: &Key, _: &[(String, String)]) -> Result<String> {
        match self.0 {}
    }

    pub async fn sign_part(&self, _: &Key, _: &str, _: usize) -> Result<String> {
        match self.0 {}
    }

    pub async fn put_part(&self, _: &Key, _: &str, _: usize, _: Bytes) -> Result<String> {
        match self.0 {}
    }

    pub async fn copy_part(&self, _: (&Key, &str, Range<u64>), _: (&Key, &str, usize)) -> Result<String> {
        match self.0 {}
    }

    pub async fn complete(&self, _: &Key, _: &str, _: Vec<String>) -> Result<()> {
        match self.0 {}
    }

    pub async fn abort(&self, _: &Key, _: &str) -> Result<()> {
        match self.0 {}
    }

    pub async fn uploads(&self, _: &Key, _: u64) -> Result<Vec<String>> {
        match self.0 {}
    }
}
