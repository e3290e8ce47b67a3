//! The code of a limit, to copy into an application.

use tower_sluice::{Algorithm, rule::RuleSettings};

use crate::limit::{Limit, NAME};

impl Limit {
    /// Returns a layer with this limit, by the address of the client.
    pub(crate) fn rust(&self) -> String {
        let quota = match self.quota.algorithm() {
            Algorithm::Gcra | Algorithm::Concurrent => String::new(),
            Algorithm::FixedWindow { paced: false, .. } => {
                ".with_algorithm(Algorithm::fixed_window())".into()
            }
            Algorithm::FixedWindow { paced: true, .. } => {
                "\n    .with_algorithm(Algorithm::FixedWindow { carry_over: 0, paced: true })"
                    .into()
            }
            other => format!("\n    .with_algorithm(Algorithm::{other:?})"),
        };
        let mut rule = String::new();
        if self.cost != 1 {
            rule += &format!("\n    .cost({})", self.cost);
        }
        if !self.max_wait.is_zero() {
            rule +=
                &format!("\n    .max_wait(Duration::from_millis({}))", self.max_wait.as_millis());
        }
        format!(
            "let quota = {:?}.parse::<Quota>()?{quota};\n\
             let rule = Rule::new({NAME:?}, PeerIp::new(), quota){rule};\n\
             let layer = RateLimitLayer::try_rules(rule, LocalStore::new())?;\n",
            self.quota.to_string(),
        )
    }

    /// Returns the limit as [`RuleSettings`] in TOML.
    pub(crate) fn toml(&self) -> Result<String, String> {
        let mut settings = RuleSettings::new(self.quota);
        settings.name = NAME.parse().map_err(|error| format!("{error}"))?;
        settings.cost = self.cost;
        settings.max_wait = self.max_wait;
        toml::to_string(&settings).map_err(|error| error.to_string())
    }
}
