//! Requests of bytes as they are, as somebody sends them who does not use the pool's client.

use bytes::{Buf, BufMut};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Endpoint;
use tonic::{Request, Status};

/// Bytes as they are.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

/// What a server answers to a request with this text for a token, or none, and from a speaker of this protocol, or of none.
pub async fn ask(
    address: &str,
    method: &'static str,
    (token, protocol): (Option<&str>, Option<u32>),
    bytes: Vec<u8>,
) -> Result<Vec<u8>, Status> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut grpc = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
    grpc.ready().await.unwrap();
    let mut request = Request::new(bytes);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", token.parse().unwrap());
    }
    if let Some(protocol) = protocol {
        request.metadata_mut().insert("surgetank-pool-protocol", protocol.into());
    }
    let path = tonic::codegen::http::uri::PathAndQuery::from_static(method);
    grpc.unary(request, path, Raw).await.map(tonic::Response::into_inner)
}
