//! The system's log, as a program writes to it that has to know whether it did.
//!
//! The C library's `syslog` says nothing of a message that nobody took.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where whatever keeps the system's log takes messages.
pub const SOCKET: &str = "/dev/log";
/// `user.info` (RFC 3164, section 4.1.1).
const PRIORITY: u8 = (1 << 3) | 6;
/// Longer ones are cut: a datagram has a limit of the system's, and what reads them a lower one.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
const CUT: &[u8] = "… (cut)".as_bytes();
/// Whatever keeps the log is back within this time if it is only restarted.
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY_EVERY: Duration = Duration::from_millis(50);

pub struct Syslog {
    path: PathBuf,
    /// Who speaks, as in `mongod[4711]`.
    tag: String,
    socket: UnixDatagram,
}

impl Syslog {
    /// # Errors
    /// Nobody takes messages at `path`.
    pub fn open(path: &Path, program: &str) -> io::Result<Syslog> {
        Ok(Syslog {
            path: path.to_owned(),
            tag: format!("{program}[{}]", std::process::id()),
            socket: connect(path)?,
        })
    }

    /// Hands a message over.
    ///
    /// # Errors
    /// Nobody has taken it for five seconds.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let datagram = datagram(&self.tag, message, &chrono::Local::now());
        let began = Instant::now();
        loop {
            let error = match self.socket.send(&datagram) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if began.elapsed() >= PATIENCE {
                return Err(error);
            }
            // One that was restarted has a socket of its own.
            match connect(&self.path) {
                Ok(socket) => self.socket = socket,
                Err(_) => std::thread::sleep(RETRY_EVERY),
            }
        }
    }
}

fn connect(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// As programs of one machine write to its log: without the host's name.
fn datagram<Z>(tag: &str, message: &[u8], now: &chrono::DateTime<Z>) -> Vec<u8>
where
    Z: chrono::TimeZone,
    Z::Offset: std::fmt::Display,
{
    let time = now.format("%b %e %H:%M:%S");
    let mut out = format!("<{PRIORITY}>{time} {tag}: ").into_bytes();
    match message.get(..MESSAGE_BYTES_MAX) {
        Some(start) if message.len() > MESSAGE_BYTES_MAX => {
            out.extend_from_slice(start);
            out.extend_from_slice(CUT);
        }
        _ => out.extend_from_slice(message),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_priority_a_time_and_a_tag() {
        let now = chrono::DateTime::from_timestamp(1_700_000_000, 0).expect("a time");
        let whole = datagram("mongod[7]", br#"{"atype":"startup"}"#, &now);
        let wanted = r#"<14>Nov 14 22:13:20 mongod[7]: {"atype":"startup"}"#;
        assert_eq!(String::from_utf8_lossy(&whole), wanted);
        let long = datagram("mongod[7]", &[b'x'; MESSAGE_BYTES_MAX + 1], &now);
        assert!(long.ends_with(CUT));
        assert_eq!(
            long.len(),
            "<14>Nov 14 22:13:20 mongod[7]: ".len() + MESSAGE_BYTES_MAX + CUT.len()
        );
    }

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = vec![0; 2 * MESSAGE_BYTES_MAX];
        let length = socket.recv(&mut buffer).expect("a datagram");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn messages_reach_whoever_listens_also_after_a_restart() {
        let name = format!("banyan-syslog-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        assert!(Syslog::open(&path, "mongod").is_err(), "nobody listens");
        let listener = UnixDatagram::bind(&path).expect("a socket");
        let mut syslog = Syslog::open(&path, "mongod").expect("somebody listens");
        syslog.send(b"one").expect("it is taken");
        let first = received(&listener);
        let tag = format!("mongod[{}]: one", std::process::id());
        assert!(
            first.starts_with("<14>") && first.ends_with(&tag),
            "{first}"
        );

        drop(listener);
        std::fs::remove_file(&path).expect("it is there");
        let again = {
            let path = path.clone();
            std::thread::spawn(move || {
                let listener = UnixDatagram::bind(&path).expect("a socket");
                received(&listener)
            })
        };
        syslog.send(b"two").expect("it is taken");
        assert!(again.join().expect("no panic").ends_with(": two"));
        std::fs::remove_file(&path).expect("it is there");
    }
}
