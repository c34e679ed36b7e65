//! A real redis-server with TLS and certificates made for the test.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

use crate::redis_server::{Redis, free_port};

/// Makes a certificate authority and writes its certificate to `NAME.pem`.
fn authority(directory: &Path, name: &str) -> Issuer<'static, KeyPair> {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let certificate = params.self_signed(&key).unwrap();
    fs::write(directory.join(format!("{name}.pem")), certificate.pem()).unwrap();
    Issuer::new(params, key)
}

/// Starts a server with a certificate for this name, valid until this year.
pub(crate) fn server(name: &str, until_year: i32) -> Redis {
    let directory = tempfile::Builder::new().prefix("tidegate-redis-").tempdir().unwrap();
    let path = directory.path();
    let issuer = authority(path, "ours");
    authority(path, "theirs");
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(until_year, 1, 1);
    let certificate = params.signed_by(&key, &issuer).unwrap();
    fs::write(path.join("server.pem"), certificate.pem()).unwrap();
    fs::write(path.join("server.key"), key.serialize_pem()).unwrap();
    let port = free_port();
    let text = port.to_string();
    let options = ["--tls-port", &text, "--tls-cert-file", "server.pem", "--tls-key-file", "server.key"];
    let more = ["--tls-ca-cert-file", "ours.pem", "--tls-auth-clients", "no"];
    Redis::start_in(directory, port, &[&options[..], &more].concat())
}
