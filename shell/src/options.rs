//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::encryption::Encryption;
use crate::login::Login;

/// The Banyan shell: JavaScript against a server.
#[derive(Debug, Parser)]
#[command(name = "mongo", version, disable_help_flag = true)]
pub struct Options {
    /// [host[:port]][/database], set/host:port,…[/database], a mongodb:// address, or a file;
    /// further arguments are files
    #[arg(value_name = "ADDRESS or FILE.js")]
    given: Vec<String>,
    /// Runs this and prints its value
    #[arg(long)]
    pub eval: Option<String>,
    /// Prints nothing of its own
    #[arg(long)]
    pub quiet: bool,
    /// Starts a prompt after --eval or files
    #[arg(long)]
    pub shell: bool,
    /// Does not connect
    #[arg(long)]
    pub nodb: bool,
    /// The server's host, or a set as set/host:port,host:port
    #[arg(long, short = 'h')]
    host: Option<String>,
    /// The server's port
    #[arg(long)]
    port: Option<u16>,
    #[command(flatten)]
    pub encryption: Encryption,
    #[command(flatten)]
    pub login: Login,
    /// Prints help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[clap(skip)]
    pub files: Vec<PathBuf>,
    #[clap(skip)]
    target: Option<String>,
}

impl Options {
    pub fn parse() -> Self {
        <Self as Parser>::parse().sorted()
    }

    /// Tells the address among the given words from the files.
    fn sorted(mut self) -> Self {
        let mut given = std::mem::take(&mut self.given).into_iter().peekable();
        self.target = given.next_if(|word| !is_script(word));
        self.files = given.map(PathBuf::from).collect();
        self
    }

    /// `host:port/database`, or the `mongodb://` address as it was given.
    pub fn address(&self) -> String {
        let given = self.target.as_deref().unwrap_or("");
        if given.starts_with("mongodb://") || given.starts_with("mongodb+srv://") {
            return given.to_owned();
        }
        let (host, database) = match given.split_once('/') {
            // `set/host:port,host:port`, and perhaps `/database`.
            Some((_, rest)) if rest.contains([':', ',']) => {
                return if rest.contains('/') {
                    given.to_owned()
                } else {
                    format!("{given}/test")
                };
            }
            Some((host, database)) => (host, database),
            // A word alone is a database, unless it looks like a host.
            None if given.contains([':', '.']) || given == "localhost" => (given, ""),
            None => ("", given),
        };
        let host = self
            .host
            .as_deref()
            .filter(|_| host.is_empty())
            .unwrap_or(host);
        let host = if host.is_empty() { "127.0.0.1" } else { host };
        if host.contains('/') {
            // A set, given with --host.
            return format!(
                "{host}/{}",
                if database.is_empty() {
                    "test"
                } else {
                    database
                }
            );
        }
        let host = match (self.port, host.contains(':')) {
            (Some(port), _) => format!("{}:{port}", host.split(':').next().unwrap_or(host)),
            (None, true) => host.to_owned(),
            (None, false) => format!("{host}:27017"),
        };
        let database = if database.is_empty() {
            "test"
        } else {
            database
        };
        format!("{host}/{database}")
    }
}

fn is_script(word: &str) -> bool {
    let address = word.starts_with("mongodb://") || word.starts_with("mongodb+srv://");
    !address && (word.ends_with(".js") || std::path::Path::new(word).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Options {
        Options::parse_from([&["mongo"], words].concat()).sorted()
    }

    #[test]
    fn addresses() {
        for (words, expected) in [
            (&[][..], "127.0.0.1:27017/test"),
            (&["shop"], "127.0.0.1:27017/shop"),
            (&["db1.example:27100"], "db1.example:27100/test"),
            (&["db1.example:27100/shop"], "db1.example:27100/shop"),
            (&["--port", "27100"], "127.0.0.1:27100/test"),
            (&["--port", "27100", "shop"], "127.0.0.1:27100/shop"),
            (&["--host", "db1.example", "shop"], "db1.example:27017/shop"),
            (&["s/a:1,b:2"], "s/a:1,b:2/test"),
            (&["s/a:1,b:2/shop"], "s/a:1,b:2/shop"),
            (&["--host", "s/a,b", "shop"], "s/a,b/shop"),
            (
                &["mongodb://a,b/?replicaSet=s"],
                "mongodb://a,b/?replicaSet=s",
            ),
        ] {
            assert_eq!(parsed(words).address(), expected, "{words:?}");
        }
    }

    #[test]
    fn files_follow_the_address() {
        let options = parsed(&["localhost:27100", "a.js", "b.js"]);
        assert_eq!(options.address(), "localhost:27100/test");
        assert_eq!(
            options.files,
            [PathBuf::from("a.js"), PathBuf::from("b.js")]
        );
        assert_eq!(parsed(&["a.js"]).files, [PathBuf::from("a.js")]);
    }
}
