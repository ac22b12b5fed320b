//! The client of the stores.

use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::signer::{Method, SignedUrlOptions, Signer};
use object_store::{
    Attribute, AttributeValue, Attributes, ClientConfigKey, ClientOptions, CopyOptions, GetOptions, GetRange,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, RetryConfig, UpdateVersion,
};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio_stream::StreamExt;

use super::failed::failed;
use super::{Address, Children, Found, Key, MARK, Options, Put, TEXT_MAX, Web, web};

/// How long a request may take.
pub(super) const REQUEST: Duration = Duration::from_secs(120);
/// How long it may take to connect.
pub(super) const CONNECT: Duration = Duration::from_secs(5);
/// How long a request is repeated that the store cannot answer at present.
const RETRY: Duration = Duration::from_secs(10);
/// How long a signed request counts.
const SIGNED: Duration = Duration::from_secs(600);

impl Options {
    /// Those of one kind that a client knows.
    fn known<K: std::str::FromStr>(&self) -> impl Iterator<Item = (K, String)> {
        self.0.iter().filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value.clone())))
    }

    /// Refuses addresses that are none, at which a client would panic, and one at which it would refuse every request. What else the environment
    /// has is not the client's.
    fn check(&self) -> Result<()> {
        let allow_http = AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp);
        // What the client takes for yes.
        let is_yes = |value: &str| matches!(&*value.to_ascii_lowercase(), "1" | "true" | "on" | "yes" | "y");
        let http = self.known().any(|(key, value): (AmazonS3ConfigKey, _)| key == allow_http && is_yes(&value));
        for (name, value) in self.0.iter() {
            let is_store = match name.to_ascii_lowercase().parse() {
                Ok(AmazonS3ConfigKey::Endpoint | AmazonS3ConfigKey::S3Endpoint | AmazonS3ConfigKey::StsEndpoint) => {
                    true
                }
                Ok(AmazonS3ConfigKey::MetadataEndpoint) => false,
                _ => continue,
            };
            let url = reqwest::Url::parse(value).ok().filter(reqwest::Url::has_host);
            let why = match url.as_ref().map(reqwest::Url::scheme) {
                Some("https") => continue,
                Some("http") if http || !is_store => continue,
                Some("http") => "is not https, and AWS_ALLOW_HTTP is not \"true\"",
                _ => "is no address such as https://store.example:9000",
            };
            let sentence = format!("the environment does not say how to reach it, as {name} {why}");
            return Err(Error::new(ErrorKind::InvalidInput, sentence));
        }
        Ok(())
    }
}

impl Key {
    fn path(&self) -> Path {
        // What a key is made of was looked at; what a store lists is as it is.
        Path::parse(&self.0).unwrap_or_else(|_| Path::from(self.0.as_str()))
    }
}

impl Found {
    fn of(meta: &ObjectMeta, attributes: &Attributes) -> Self {
        let mark = attributes.get(&Attribute::Metadata(MARK.into())).map(|mark| mark.as_ref().to_owned());
        let modified = meta.last_modified.timestamp_nanos_opt().and_then(|at| u64::try_from(at).ok()).unwrap_or(0);
        let (tag, version) = (meta.e_tag.clone().unwrap_or_default(), meta.version.clone());
        Self { size: meta.size, tag, version, modified, mark }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Bucket {
    address: Address,
    objects: Arc<dyn ObjectStore>,
    multipart: Arc<dyn Multipart>,
    /// Signs requests for others, and those that the client does not know.
    signer: Arc<dyn Signer>,
    web: Web,
}

/// Of what a client is made.
trait Multipart: MultipartStore + std::fmt::Debug {}

impl<T: MultipartStore + std::fmt::Debug> Multipart for T {}

impl Bucket {
    /// Nothing is asked yet.
    ///
    /// # Errors
    /// What is wrong with the options.
    pub fn open(address: Address, options: &Options) -> Result<Self> {
        let client = ClientOptions::new().with_timeout(REQUEST).with_connect_timeout(CONNECT);
        let retry = RetryConfig { max_retries: 4, retry_timeout: RETRY, ..RetryConfig::default() };
        // An upload that is begun a second time, since the answer was lost, is nobody's.
        let once = RetryConfig { max_retries: 0, ..retry.clone() };
        let wrong = |error: object_store::Error| {
            Error::new(ErrorKind::InvalidInput, format!("the environment does not say how to reach it: {error}"))
        };
        options.check()?;
        // Before the first client is made, which has none of its own.
        let web = Web::new()?;
        let build = |retry| {
            // One object is removed at a time: by a request of its own, whose failures are told as all others are.
            let builder = AmazonS3Builder::new().with_client_options(client.clone()).with_retry(retry);
            let builder = builder.with_disable_bulk_delete(true);
            let builder = options
                .known::<AmazonS3ConfigKey>()
                .fold(builder, |builder, (key, value)| builder.with_config(key, value));
            builder.with_bucket_name(&address.bucket).build().map(Arc::new).map_err(wrong)
        };
        let (objects, multipart) = (build(retry)?, build(once)?);
        let signer = objects.clone();
        Ok(Self { address, objects, multipart, signer, web })
    }

    /// Where it is.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// See [`Key::below`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidFilename`]: no object can be called so.
    pub fn key<'a>(&self, names: impl IntoIterator<Item = &'a [u8]>) -> Result<Key> {
        Key::below(&self.address, names)
    }

    /// What is at a key.
    ///
    /// # Errors
    /// The store's.
    pub async fn head(&self, key: &Key) -> Result<Option<Found>> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.objects.get_opts(&key.path(), options).await {
            Ok(found) => Ok(Some(Found::of(&found.meta, &found.attributes))),
            Err(error) => none_if_absent(&error),
        }
    }

    /// Bytes of what is at a key, and what it is; `tag`: of this content.
    ///
    /// # Errors
    /// The store's; [`ErrorKind::NotFound`], [`ErrorKind::AlreadyExists`]: another is there.
    pub async fn get(&self, key: &Key, range: Range<u64>, tag: Option<&str>) -> Result<(Found, Bytes)> {
        let length = range.end - range.start;
        let options = GetOptions {
            range: (length > 0).then_some(GetRange::Bounded(range)),
            if_match: tag.map(str::to_owned),
            ..GetOptions::default()
        };
        let got = self.objects.get_opts(&key.path(), options).await.map_err(|error| failed(&error))?;
        let found = Found::of(&got.meta, &got.attributes);
        let bytes = got.bytes().await.map_err(|error| failed(&error))?;
        if bytes.len() as u64 == length {
            return Ok((found, bytes));
        }
        let sentence = format!("the store sent {} bytes of {length} that were asked for", bytes.len());
        Err(Error::new(ErrorKind::UnexpectedEof, sentence))
    }

    /// A small object as text, and what it is.
    ///
    /// # Errors
    /// The store's; [`ErrorKind::InvalidData`]: it is longer than anything that the pool says of itself.
    pub async fn text(&self, key: &Key) -> Result<Option<(String, Found)>> {
        match self.objects.get_opts(&key.path(), GetOptions::default()).await {
            Ok(got) => {
                let found = Found::of(&got.meta, &got.attributes);
                if found.size > TEXT_MAX {
                    let sentence = format!("{} has {} bytes, and is not the pool's", key.text(), found.size);
                    return Err(Error::new(ErrorKind::InvalidData, sentence));
                }
                let bytes = got.bytes().await.map_err(|error| failed(&error))?;
                Ok(Some((String::from_utf8_lossy(&bytes).into_owned(), found)))
            }
            Err(error) => none_if_absent(&error),
        }
    }

    /// Puts a small object.
    ///
    /// # Errors
    /// The store's; [`ErrorKind::AlreadyExists`]: what was to be there is not.
    pub async fn put(&self, key: &Key, bytes: Bytes, put: Put<'_>, attributes: &[(String, String)]) -> Result<()> {
        let mode = match put {
            Put::New => PutMode::Create,
            Put::Instead(found) => {
                PutMode::Update(UpdateVersion { e_tag: Some(found.tag.clone()), version: found.version.clone() })
            }
            Put::Over => PutMode::Overwrite,
        };
        let options = PutOptions { mode, attributes: with(attributes), ..PutOptions::default() };
        self.objects.put_opts(&key.path(), bytes.into(), options).await.map(drop).map_err(|error| failed(&error))
    }

    /// Removes what is at a key, if something is.
    ///
    /// # Errors
    /// The store's.
    pub async fn delete(&self, key: &Key) -> Result<()> {
        match self.objects.delete(&key.path()).await {
            Ok(()) => Ok(()),
            Err(error) => none_if_absent::<()>(&error).map(drop),
        }
    }

    /// Has the store copy an object with what is said of it, over what is at the other key: one of [`COPY_MAX`](super::COPY_MAX) bytes at most.
    ///
    /// # Errors
    /// The store's; also if it takes too long, and may copy it still.
    pub async fn copy(&self, from: &Key, to: &Key) -> Result<()> {
        let copied = self.objects.copy_opts(&from.path(), &to.path(), CopyOptions::default()).await;
        copied.map_err(|error| failed(&error))
    }

    /// Begins an upload of which the same is said as of an object.
    ///
    /// # Errors
    /// The store's.
    pub async fn begin_as(&self, from: &Key, to: &Key) -> Result<String> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        let found = self.objects.get_opts(&from.path(), options).await.map_err(|error| failed(&error))?;
        let options = PutMultipartOptions { attributes: found.attributes, ..PutMultipartOptions::default() };
        self.multipart.create_multipart_opts(&to.path(), options).await.map_err(|error| failed(&error))
    }

    /// What is directly below a key.
    ///
    /// # Errors
    /// The store's.
    pub async fn children(&self, key: &Key) -> Result<Children> {
        let listed = self.objects.list_with_delimiter(Some(&key.path())).await.map_err(|error| failed(&error))?;
        let name = |path: &Path| {
            let below = path.as_ref().strip_prefix(key.text())?.trim_start_matches('/');
            (!below.is_empty() && !below.contains('/')).then(|| below.to_owned())
        };
        let found = |meta: &ObjectMeta| Some((name(&meta.location)?, Found::of(meta, &Attributes::new())));
        let objects = listed.objects.iter().filter_map(found).collect();
        Ok((objects, listed.common_prefixes.iter().filter_map(name).collect()))
    }

    /// Whether something is below a key.
    ///
    /// # Errors
    /// The store's.
    pub async fn has_below(&self, key: &Key) -> Result<bool> {
        match self.objects.list(Some(&key.path())).next().await {
            Some(Ok(_)) => Ok(true),
            Some(Err(error)) => Err(failed(&error)),
            None => Ok(false),
        }
    }

    /// Objects below a key, so many at most.
    ///
    /// # Errors
    /// The store's.
    pub async fn below(&self, key: &Key, most: usize) -> Result<Vec<(Key, Found)>> {
        let (mut listed, mut all) = (self.objects.list(Some(&key.path())).take(most), Vec::new());
        while let Some(meta) = listed.next().await {
            let meta = meta.map_err(|error| failed(&error))?;
            all.push((Key(meta.location.to_string()), Found::of(&meta, &Attributes::new())));
        }
        Ok(all)
    }

    /// Begins an upload.
    ///
    /// # Errors
    /// The store's.
    pub async fn begin(&self, key: &Key, attributes: &[(String, String)]) -> Result<String> {
        let options = PutMultipartOptions { attributes: with(attributes), ..PutMultipartOptions::default() };
        self.multipart.create_multipart_opts(&key.path(), options).await.map_err(|error| failed(&error))
    }

    /// A request by which others put a part, from 0 on.
    ///
    /// # Errors
    /// There are no credentials.
    pub async fn sign_part(&self, key: &Key, id: &str, part: usize) -> Result<String> {
        let options =
            SignedUrlOptions::new().with_query([("partNumber", (part + 1).to_string()), ("uploadId", id.to_owned())]);
        let signed = self.signer.signed_url_opts(Method::PUT, &key.path(), SIGNED, &options).await;
        signed.map(Into::into).map_err(|error| failed(&error))
    }

    /// Puts a part, from 0 on; its tag.
    ///
    /// # Errors
    /// The store's.
    pub async fn put_part(&self, key: &Key, id: &str, part: usize, bytes: Bytes) -> Result<String> {
        self.web.put(&self.sign_part(key, id, part).await?, bytes).await
    }

    /// Has the store copy bytes of an object, of this content, as a part, from 0 on; its tag.
    ///
    /// # Errors
    /// The store's; [`ErrorKind::NotFound`], [`ErrorKind::AlreadyExists`]: another is there.
    pub async fn copy_part(
        &self,
        (from, tag, range): (&Key, &str, Range<u64>),
        (to, id, part): (&Key, &str, usize),
    ) -> Result<String> {
        let source = format!("{}/{}", self.address.bucket, encoded(from.text()));
        let range = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let query = [("partNumber", (part + 1).to_string()), ("uploadId", id.to_owned())];
        let (mut options, mut headers) = (SignedUrlOptions::new().with_query(query), HeaderMap::new());
        let bound = [("x-amz-copy-source", source), ("x-amz-copy-source-range", range)];
        for (name, value) in bound.into_iter().chain([("x-amz-copy-source-if-match", tag.to_owned())]) {
            let value = HeaderValue::try_from(value).map_err(|_| Error::other("the store's answer makes no sense"))?;
            options = options.with_signed_header(HeaderName::from_static(name), value.clone());
            headers.insert(name, value);
        }
        let signed = self.signer.signed_url_opts(Method::PUT, &to.path(), SIGNED, &options).await;
        self.web.copy(signed.map_err(|error| failed(&error))?.as_str(), headers).await
    }

    /// Makes an object of all parts of an upload.
    ///
    /// # Errors
    /// The store's; [`ErrorKind::StaleNetworkFileHandle`]: the upload is of no use any more.
    pub async fn complete(&self, key: &Key, id: &str, tags: Vec<String>) -> Result<()> {
        let parts = tags.into_iter().map(|content_id| PartId { content_id }).collect();
        let completed = self.multipart.complete_multipart(&key.path(), &id.to_owned(), parts).await;
        completed.map(drop).map_err(|error| failed(&error))
    }

    /// Ends an upload in vain; one that is over is none.
    ///
    /// # Errors
    /// The store's.
    pub async fn abort(&self, key: &Key, id: &str) -> Result<()> {
        match self.multipart.abort_multipart(&key.path(), &id.to_owned()).await.map_err(|error| failed(&error)) {
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Uploads to a key that are under way and were begun at some time or later, in nanoseconds since 1970.
    ///
    /// # Errors
    /// The store's.
    pub async fn uploads(&self, key: &Key, since: u64) -> Result<Vec<String>> {
        let query = [("uploads", ""), ("prefix", key.text())];
        let options = SignedUrlOptions::new().with_query(query);
        let signed = self.signer.signed_url_opts(Method::GET, &Path::default(), SIGNED, &options).await;
        let url = signed.map_err(|error| failed(&error))?;
        web::uploads(&self.web.get(url.as_str()).await?, key.text(), since)
    }
}

/// A key as a header has it.
fn encoded(key: &str) -> String {
    let of = |byte: u8| match byte {
        b'-' | b'.' | b'_' | b'~' | b'/' => char::from(byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    key.bytes().map(of).collect()
}

fn with(attributes: &[(String, String)]) -> Attributes {
    let of = |(name, value): &(String, String)| {
        (Attribute::Metadata(name.clone().into()), AttributeValue::from(value.clone()))
    };
    attributes.iter().map(of).collect()
}

fn none_if_absent<T>(error: &object_store::Error) -> Result<Option<T>> {
    match failed(error) {
        error if error.kind() == ErrorKind::NotFound => Ok(None),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(options: &[(&str, &str)]) -> Result<Bucket> {
        Bucket::open("s3://bucket/prefix".parse().unwrap(), &Options::of(options))
    }

    #[test]
    fn an_address_that_is_none_is_refused_before_anything_is_asked() {
        for (endpoint, why) in [
            ("nonsense", "is no address"),
            ("", "is no address"),
            ("ftp://store", "is no address"),
            ("http://store", "is not https"),
        ] {
            let refused = opened(&[("AWS_ENDPOINT_URL", endpoint)]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
            assert!(refused.to_string().contains(&format!("AWS_ENDPOINT_URL {why}")), "{endpoint}: {refused}");
        }
        for yes in ["true", "1", "Yes"] {
            opened(&[("AWS_ENDPOINT_URL", "http://store"), ("AWS_ALLOW_HTTP", yes)]).unwrap();
        }
        opened(&[("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"), ("AWS_ENDPOINT_URL_DYNAMODB", "")]).unwrap();
        opened(&[("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")]).unwrap();
    }

    #[test]
    fn that_there_are_no_credentials_is_told() {
        let bucket = opened(&[("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let refused = runtime.block_on(bucket.head(&bucket.key([]).unwrap())).unwrap_err();
        assert!(refused.to_string().starts_with("there are no credentials"), "{refused}");
    }
}
