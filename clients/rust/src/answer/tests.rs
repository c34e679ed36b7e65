//! The response of every client to these decisions: tests/vectors/answers.json.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::decision::{Decision, Verdict};
use crate::fault::Reason;
use crate::wire::decode;

#[test]
fn answers_as_every_client() {
    let answers = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/answers.json"));
    let answers: Vec<Json> = serde_json::from_str(answers).unwrap();
    let mut compared = 0;
    for answer in &answers {
        let name = answer["name"].as_str().unwrap();
        let decision = match answer["reason"].as_str() {
            Some(_) if answer["status"] == 200 => Decision::without_daemon(Verdict::Allow, Reason::Timeout),
            Some(_) => Decision::without_daemon(Verdict::Shed, Reason::Invalid),
            None => {
                let frame = crate::wire::tests::bytes(&answer["decision"]);
                let message = decode(&frame[4..]).unwrap();
                let (decision, _) = Decision::read(&message[2..]).unwrap();
                Decision { domain: answer["domain"].as_str().map(str::to_owned), ..decision }
            }
        };
        assert_eq!(decision.message(), answer["message"].as_str().unwrap(), "{name}");
        if let Some(body) = answer["body"].as_str() {
            assert_eq!(decision.problem(), body, "{name}");
            assert_eq!(answer["status"], decision.status(), "{name}");
        }
        // Redirects have no headers, which the layer decides.
        if answer["style"] == "both" && !["allowed_redirect", "allowed_not_modified"].contains(&name) {
            let of_body = ["Content-Type", "Content-Length", "Cache-Control"];
            let pairs = answer["headers"].as_array().unwrap().iter();
            let pairs = pairs.map(|pair| (pair[0].as_str().unwrap(), pair[1].as_str().unwrap().to_owned()));
            let expected: BTreeMap<_, _> = pairs.filter(|(name, _)| !of_body.contains(name)).collect();
            assert_eq!(decision.headers().into_iter().collect::<BTreeMap<_, _>>(), expected, "{name}");
        }
        compared += 1;
    }
    assert!(compared > 30, "{compared}");
}
