//! The OpenAPI document, made from the types of bodies.

use std::sync::LazyLock;

use hyper::body::Bytes;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use super::bodies::{ChargeBody, CheckBody, ReleaseBody};
use super::decision::HttpDecision;

/// The answer to release and charge.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "for its schema")]
struct DoneBody {
    /// False: nothing changed.
    ok: bool,
    /// Whether the daemon did not answer, for the `reason`.
    degraded: bool,
    /// As in a decision.
    reason: Option<String>,
}

/// A request that was not passed on.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "for its schema")]
struct ErrorBody {
    /// The fault, and often a help.
    error: String,
}

/// The document (OpenAPI 3.1), made once: it takes as long as some hundred decisions.
pub(super) static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| format!("{}\n", document()).into());

fn document() -> Value {
    let mut schemas = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let check = schemas.subschema_for::<CheckBody>();
    let decision = schemas.subschema_for::<HttpDecision>();
    let (charge, release) = (schemas.subschema_for::<ChargeBody>(), schemas.subschema_for::<ReleaseBody>());
    let done = schemas.subschema_for::<DoneBody>();
    let error = schemas.subschema_for::<ErrorBody>();
    let post = |summary: &str, needs_session: bool, body: &Schema, answer: &Schema| {
        let content = |schema: &Schema| json!({"application/json": {"schema": schema}});
        json!({"post": {
            "summary": summary,
            "parameters": [{
                "name": "Tidegate-Session", "in": "header", "required": needs_session,
                "description": "A random text that the process keeps; its leases end 60 s after its last request.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 128}
            }],
            "requestBody": {"required": true, "content": content(body)},
            "responses": {
                "200": {"description": "The answer.", "content": content(answer)},
                "default": {"description": "The request was not passed on.", "content": content(&error)}
            }
        }})
    };
    let described = |description: &str| json!({"description": description});
    let auth = json!({
        "summary": "Checks the request of a proxy, whose headers the settings name.",
        "parameters": [{
            "name": "refusal", "in": "query", "schema": {"const": "403"},
            "description": "Answers refusals with 403, and their own status in Tidegate-Status."
        }],
        "responses": {
            "204": described("Allowed."),
            "403": described("On a deny list."),
            "429": described("Over a limit: Retry-After."),
            "503": described("The service is at its capacity: Retry-After.")
        }
    });
    json!({
        "openapi": "3.1.0",
        "info": {"title": "tidegate", "version": env!("CARGO_PKG_VERSION")},
        "paths": {
            "/v1/hit": post("Checks a request without an end.", false, &check, &decision),
            "/v1/acquire": post("Checks a request that ends with release.", true, &check, &decision),
            "/v1/peek": post("Decides as acquire would, and changes nothing.", false, &check, &decision),
            "/v1/release": post("Ends a lease.", true, &release, &done),
            "/v1/charge": post("Charges afterwards, or refunds.", false, &charge, &done),
            "/v1/auth": {"get": auth, "post": auth}
        },
        "components": {"schemas": schemas.take_definitions(true)}
    })
}
