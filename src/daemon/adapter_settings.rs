//! `adapters` in the settings: other ways to ask than the socket. Opens nothing.

use std::net::SocketAddr;
use std::path::Path;

use hyper::header::HeaderName;
use serde::Deserialize;

use super::settings::check_socket_path;
use super::settings_file::PathText;
use crate::adapters::{AdapterProtocol, Endpoint, HttpAuth};
use crate::rules::de::{DeferredMap, FieldText, FileNode};
use crate::rules::values::{Name, read_from};
use crate::rules::{ValueProblem, shown};

#[derive(Deserialize)]
#[serde(rename = "`adapters`")]
pub(super) struct AdaptersFields<'n> {
    #[serde(borrow)]
    http: Option<EndpointFields<'n>>,
    resp: Option<EndpointFields<'n>>,
    envoy: Option<EndpointFields<'n>>,
}

#[derive(Deserialize)]
#[serde(rename = "an adapter")]
struct EndpointFields<'n> {
    #[serde(borrow)]
    socket: Option<PathText<'n>>,
    listen: Option<LoopbackAddress>,
    token_file: Option<PathText<'n>>,
    domains: Option<Vec<Name<'n>>>,
    /// Of HTTP alone.
    auth: Option<AuthFields<'n>>,
}

#[derive(Deserialize)]
#[serde(rename = "`auth`")]
struct AuthFields<'n> {
    #[serde(borrow)]
    domain: Name<'n>,
    #[expect(dead_code, reason = "looked up by name")]
    attributes: Option<DeferredMap<HeaderText>>,
}

struct LoopbackAddress(SocketAddr);

struct HeaderText(HeaderName);

read_from! {
    ['de] LoopbackAddress, FieldText => |FieldText(_, text)| {
        let address = text.parse().ok().filter(|address: &SocketAddr| address.ip().is_loopback());
        address.map(LoopbackAddress).ok_or_else(|| {
            let help = "write an address of this host and a port: \"127.0.0.1:9632\", or \"[::1]:9632\"";
            ValueProblem::new(format!("{} is no loopback address with a port", shown(text)), help)
        })
    };
    ['de] HeaderText, FieldText => |FieldText(_, text)| text.parse().map(HeaderText).map_err(|_| {
        ValueProblem::new(format!("{} is no name of a header", shown(text)), "write one, such as X-Real-IP")
    });
}

/// Checks the fields of each adapter; paths are relative to `directory`. Leaves out, after reporting it, one that cannot be served
/// so.
pub(super) fn read(
    fields: AdaptersFields<'_>,
    mapping: FileNode<'_>,
    directory: &Path,
) -> Vec<(AdapterProtocol, Endpoint)> {
    let mut adapters = Vec::new();
    for (protocol, own) in [
        (AdapterProtocol::Http(None), fields.http),
        (AdapterProtocol::Resp, fields.resp),
        (AdapterProtocol::Envoy, fields.envoy),
    ] {
        let Some((own, node)) = own.zip(mapping.get(protocol.names().1)) else { continue };
        adapters.extend(read_endpoint(protocol, own, node, directory));
    }
    adapters
}

fn read_endpoint(
    mut protocol: AdapterProtocol,
    fields: EndpointFields<'_>,
    mapping: FileNode<'_>,
    directory: &Path,
) -> Option<(AdapterProtocol, Endpoint)> {
    let (_, name) = protocol.names();
    let errors_before = mapping.report.errors();
    match (&mut protocol, fields.auth) {
        (AdapterProtocol::Http(auth), Some(own)) => {
            let attributes = attributes(mapping.field("auth"));
            *auth = Some(HttpAuth { domain: own.domain.0.into(), attributes });
        }
        (_, Some(_)) => {
            mapping.error_at("auth", "only `http` has `auth`", "leave it out");
        }
        (_, None) => {}
    }
    let socket = fields.socket.map(|path| directory.join(path.0));
    if let Some(socket) = &socket {
        mapping.field("socket").settle(check_socket_path(socket));
    }
    if socket.is_none() && fields.listen.is_none() && !mapping.has("socket") && !mapping.has("listen") {
        mapping.error(
            format!("`{name}` needs `socket` or `listen`"),
            format!("write `socket: /run/tidegate/{name}.sock`"),
        );
    }
    if fields.listen.is_some() && !(mapping.has("token_file") && mapping.has("domains")) {
        let message = "`listen` needs `token_file` and `domains`: over TCP no user is known";
        let help = "write both, or `socket` instead; make a token: (umask 077; openssl rand -hex 32 > FILE)";
        mapping.error_at("listen", message, help);
    }
    let endpoint = Endpoint {
        socket,
        listen: fields.listen.map(|address| address.0),
        token_file: fields.token_file.map(|path| directory.join(path.0)).unwrap_or_default(),
        domains: fields.domains.unwrap_or_default().into_iter().map(|name| name.0.into()).collect(),
        ..Endpoint::default()
    };
    (mapping.report.errors() == errors_before).then_some((protocol, endpoint))
}

fn attributes(auth: FileNode<'_>) -> Vec<(Box<str>, HeaderName)> {
    let Some(attributes) = auth.get("attributes") else {
        let help = "write `attributes: {ip: X-Real-IP}`";
        auth.error("`auth` needs `attributes`", help);
        return Vec::new();
    };
    let mut read = Vec::new();
    for (key, node) in attributes.pairs() {
        let name: Option<Name<'_>> = key.value("attribute");
        let header: Option<HeaderText> = node.value("header");
        read.extend(name.zip(header).map(|(name, header)| (name.0.into(), header.0)));
    }
    if read.len() > ATTRIBUTES_MAX {
        let message = format!("`attributes` has {} names", read.len());
        attributes.error(message, format!("write at most {ATTRIBUTES_MAX}"));
    }
    read
}

/// A descriptor holds no more.
const ATTRIBUTES_MAX: usize = 16;
