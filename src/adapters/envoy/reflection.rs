//! Server reflection, by which tools such as grpcurl learn the messages: the published descriptors of the services.

use std::pin::Pin;
use std::sync::LazyLock;

use prost::Message;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_stream::{Stream, StreamExt};
use tonic::server::StreamingService;
use tonic::{Code, Response, Status, Streaming};

/// The method of the reflection service, with the place of its stream.
#[derive(Debug)]
pub(super) struct Reflection(Option<SemaphorePermit<'static>>);

impl Reflection {
    /// Takes a place; `None`: too many streams are open.
    pub(super) fn enter() -> Option<Reflection> {
        STREAMS.try_acquire().ok().map(|place| Reflection(Some(place)))
    }
}

impl StreamingService<ReflectionRequest> for Reflection {
    type Response = ReflectionResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<ReflectionResponse, Status>> + Send>>;
    type Future = std::future::Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<ReflectionRequest>>) -> Self::Future {
        let place = self.0.take();
        let answers = request.into_inner().map(move |request| {
            let _taken = &place;
            request.map(answer)
        });
        std::future::ready(Ok(Response::new(Box::pin(answers))))
    }
}

/// A request, whose first field but the host decides.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ReflectionRequest {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(string, optional, tag = "3")]
    file_by_filename: Option<String>,
    #[prost(string, optional, tag = "4")]
    file_containing_symbol: Option<String>,
    #[prost(bytes = "vec", optional, tag = "5")]
    file_containing_extension: Option<Vec<u8>>,
    #[prost(string, optional, tag = "6")]
    all_extension_numbers_of_type: Option<String>,
    #[prost(string, optional, tag = "7")]
    list_services: Option<String>,
}

/// The answer, of which one field but the first two is set.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ReflectionResponse {
    #[prost(string, tag = "1")]
    valid_host: String,
    #[prost(message, optional, tag = "2")]
    original_request: Option<ReflectionRequest>,
    #[prost(message, optional, tag = "4")]
    file: Option<FileList>,
    #[prost(message, optional, tag = "6")]
    services: Option<NameList>,
    #[prost(message, optional, tag = "7")]
    error: Option<ReflectionError>,
}

/// Files as they are in a FileDescriptorSet, and in an answer.
#[derive(Clone, PartialEq, Message)]
struct FileList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct NameList {
    #[prost(message, repeated, tag = "1")]
    names: Vec<Named>,
}

#[derive(Clone, PartialEq, Message)]
struct ReflectionError {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, Message)]
struct FileNames {
    #[prost(string, tag = "1")]
    file: String,
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "4")]
    messages: Vec<Named>,
    #[prost(message, repeated, tag = "5")]
    enums: Vec<Named>,
    #[prost(message, repeated, tag = "6")]
    services: Vec<Named>,
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

impl FileNames {
    /// Whether the file has a symbol, or that in which it is nested.
    fn holds(&self, symbol: &str) -> bool {
        let inside = symbol.strip_prefix(&*self.package).and_then(|rest| rest.strip_prefix('.'));
        let Some(first) = inside.and_then(|inside| inside.split('.').next()) else { return false };
        self.messages.iter().chain(&self.enums).chain(&self.services).any(|named| named.name == first)
    }
}

fn answer(request: ReflectionRequest) -> ReflectionResponse {
    let mut response =
        ReflectionResponse { valid_host: request.host.clone(), ..ReflectionResponse::default() };
    let file = |is_it: &dyn Fn(&FileNames) -> bool| {
        let (_, bytes) = FILES.iter().find(|(names, _)| is_it(names))?;
        Some(FileList { files: vec![bytes.clone()] })
    };
    if request.list_services.is_some() {
        let of_file = |(names, _): &(FileNames, Vec<u8>)| {
            let full = |service: &Named| Named { name: format!("{}.{}", names.package, service.name) };
            names.services.iter().map(full).collect::<Vec<_>>()
        };
        response.services = Some(NameList { names: FILES.iter().flat_map(of_file).collect() });
    } else if let Some(name) = &request.file_by_filename {
        response.file = file(&|names| names.file == *name);
    } else if let Some(symbol) = &request.file_containing_symbol {
        response.file = file(&|names| names.holds(symbol));
    }
    if response.services.is_none() && response.file.is_none() {
        let message = "no such file or symbol; extensions are not listed".to_owned();
        response.error = Some(ReflectionError { code: Code::NotFound.into(), message });
    }
    response.original_request = Some(request);
    response
}

/// The files of the services, and what they import.
static FILES: LazyLock<Vec<(FileNames, Vec<u8>)>> = LazyLock::new(|| {
    let files = FileList::decode(SERVICES).unwrap_or_default().files.into_iter();
    files.map(|file| (FileNames::decode(&*file).unwrap_or_default(), file)).collect()
});

static STREAMS: Semaphore = Semaphore::const_new(STREAMS_MAX);

/// As `asker -descriptors` of tests/migrate prints them.
const SERVICES: &[u8] = include_bytes!("services.binpb");

/// People ask, not programs; each stream takes some 32 KiB.
const STREAMS_MAX: usize = 16;

/// The length of a name, some times.
pub(super) const REQUEST_BYTES_MAX: usize = 1_024;

/// The method, in both versions of the service.
pub(super) const PATHS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];
