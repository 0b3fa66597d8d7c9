//! The engine's journal after a power cut.
//!
//! Nobody waits for the journal, so a power cut leaves any mixture of written and lost pages after
//! what was last synced. The engine takes a journal that just ends, but refuses one with a hole in
//! the middle of a batch, although the caller's log has everything from the last sync on. So each
//! [`persist`] notes durably how far the journal is known to be on the disk: it commits a mark (the
//! removal of a key that never existed), syncs the journal, and then writes the mark's number and
//! the journal's into a file of its own. When the directory is opened, [`mend`] reads the newest
//! journal before the engine does. If a batch of it is damaged and the mark lies before that, the
//! journal is cut there; the bytes that are cut off are kept aside. Damage anywhere else is left to
//! the engine, and to the caller's check that state and log meet.
//!
//! A journal is sealed, and synced, before the next one begins: after a power cut only the newest
//! can have holes. The engine also syncs the journal before it writes a table from memory. That is
//! later than the mark, so [`confirm`] refuses a state whose tables are ahead of a journal that was
//! cut: what was lost then had been synced.

mod early;

use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fjall::{AbstractTree, PersistMode};
use xxhash_rust::xxh3::Xxh3;

use crate::StorageError;
use crate::keys;
use crate::keyspaces::Keyspaces;
pub(crate) use early::EarlySync;

const MARK_FILE: &str = "durable";
/// There from before a journal is cut until the tables are known to fit what is left.
const PENDING_FILE: &str = "journal.pending";
/// What was cut off the last time.
const CUT_FILE: &str = "journal.cut";
const JOURNAL_EXTENSION: &str = "jnl";

const BATCH: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: &[u8] = b"FJL\x03";
/// Value types of the engine: value, tombstone, weak tombstone, pointer.
const VALUE_TYPES: [u8; 4] = [0, 1, 2, 4];
const TOMBSTONE: u8 = 1;

/// What is known to be on the disk: everything up to a certain batch of a certain journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    journal: u64,
    /// The number in the key of the batch.
    number: u64,
    /// The engine's sequence number after the batch.
    seqno: u64,
}

impl Mark {
    fn encode(self) -> String {
        let text = format!("{} {} {}", self.journal, self.number, self.seqno);
        format!("{text} {:08x}\n", crc32c::crc32c(text.as_bytes()))
    }

    fn decode(text: &str) -> Option<Mark> {
        let (text, sum) = text.strip_suffix('\n')?.rsplit_once(' ')?;
        if u32::from_str_radix(sum, 16).ok()? != crc32c::crc32c(text.as_bytes()) {
            return None;
        }
        let mut numbers = text.split(' ').map(|number| number.parse().ok());
        Some(Mark {
            journal: numbers.next()??,
            number: numbers.next()??,
            seqno: numbers.next()??,
        })
    }

    fn read(state: &Path) -> io::Result<Option<Mark>> {
        match fs::read(state.join(MARK_FILE)) {
            Ok(bytes) => Ok(String::from_utf8(bytes)
                .ok()
                .and_then(|text| Mark::decode(&text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Syncs the journal and notes how far it goes. One at a time.
pub(crate) fn persist(
    state: &Path,
    database: &fjall::Database,
    meta: &fjall::Keyspace,
) -> Result<(), StorageError> {
    let mut number = 0;
    loop {
        let journal = newest(state).map_err(fjall::Error::Io)?;
        // Never the number of an earlier mark, which may be in the journal without a note of it.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos() as u64;
        number = now.max(number + 1);
        let mut batch = fjall::OwnedWriteBatch::with_capacity(database.clone(), 1);
        batch.remove(meta, keys::journal_mark(number));
        batch.commit()?;
        database.persist(PersistMode::SyncAll)?;
        // Another journal may have begun meanwhile: then it is unknown in which one the mark is.
        if newest(state).map_err(fjall::Error::Io)? == journal {
            let mark = Mark {
                journal: journal.unwrap_or_default(),
                number,
                seqno: database.seqno(),
            };
            return write_durably(state, MARK_FILE, mark.encode().as_bytes())
                .map_err(|error| fjall::Error::Io(error).into());
        }
    }
}

/// Whether there has ever been a mark in this state.
pub(crate) fn has_mark(state: &Path) -> bool {
    state.join(MARK_FILE).exists()
}

/// Cuts the newest journal where it is damaged, if everything known to be on the disk comes before.
pub(crate) fn mend(state: &Path) -> io::Result<()> {
    let Some(mark) = Mark::read(state)? else {
        return Ok(());
    };
    let Some(journal) = newest(state)? else {
        return Ok(());
    };
    let path = journal_path(state, journal);
    let scan = scan(&path, mark.number)?;
    let Rest::Damaged { at, reason } = scan.rest else {
        return Ok(());
    };
    let place = path.display();
    if journal < mark.journal || (journal == mark.journal && !scan.marked) {
        tracing::warn!(
            journal = %place,
            at,
            reason,
            "the state's journal is damaged in a part that had been synced"
        );
        return Ok(());
    }
    let mut kept = mark.seqno.saturating_sub(1).max(scan.seqno);
    if scan.seqno == 0 && journal > mark.journal {
        kept = kept.max(last_seqno_before(state, journal)?);
    }
    let cut_bytes = keep_aside(state, &path, scan.end)?;
    write_durably(state, PENDING_FILE, format!("{kept}\n").as_bytes())?;
    let file = File::options().write(true).open(&path)?;
    file.set_len(scan.end)?;
    file.sync_all()?;
    tracing::warn!(
        journal = %place,
        damaged_at = at,
        reason,
        cut_at = scan.end,
        cut_bytes,
        kept_in = CUT_FILE,
        "the state's journal is damaged past what had been synced, as a power cut leaves it: it \
         is cut there, and the log is replayed from there on"
    );
    Ok(())
}

/// After a cut, and before anything is written: the tables hold nothing later than the journal. An
/// import writes tables of records and indexes without it.
pub(crate) fn confirm(
    state: &Path,
    keyspaces: &Keyspaces,
    importing: bool,
) -> Result<(), StorageError> {
    let note = match fs::read_to_string(state.join(PENDING_FILE)) {
        Ok(note) => note,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fjall::Error::Io(error).into()),
    };
    let kept: u64 = note
        .trim_end()
        .parse()
        .map_err(|_| StorageError::damaged(PENDING_FILE, "it holds no number"))?;
    let mut tables = vec![&keyspaces.meta];
    if !importing {
        tables.extend([&keyspaces.records, &keyspaces.indexes]);
    }
    let highest = tables
        .into_iter()
        .filter_map(|keyspace| keyspace.tree.get_highest_persisted_seqno())
        .max();
    if let Some(highest) = highest.filter(|&highest| highest > kept) {
        return Err(StorageError::damaged(
            "the state's journal",
            format!(
                "it could be read up to {kept} and was cut there, but tables go up to {highest}: \
                 what is lost had been synced ({CUT_FILE} holds it)"
            ),
        ));
    }
    let removed = fs::remove_file(state.join(PENDING_FILE)).and_then(|()| sync_folder(state));
    removed.map_err(|error| fjall::Error::Io(error).into())
}

/// The sequence number with which the journals before `journal` end, as far as there are any.
fn last_seqno_before(state: &Path, journal: u64) -> io::Result<u64> {
    let before = numbers(state)?.into_iter().filter(|&one| one < journal);
    match before.max() {
        Some(previous) => Ok(scan(&journal_path(state, previous), 0)?.seqno),
        None => Ok(0),
    }
}

fn journal_path(state: &Path, number: u64) -> PathBuf {
    state.join(format!("{number}.{JOURNAL_EXTENSION}"))
}

fn numbers(state: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(state)? {
        let name = PathBuf::from(entry?.file_name());
        if name.extension().is_some_and(|it| it == JOURNAL_EXTENSION) {
            let number = name.file_stem().and_then(|stem| stem.to_str());
            numbers.extend(number.and_then(|stem| stem.parse::<u64>().ok()));
        }
    }
    Ok(numbers)
}

/// The number of the journal that is written.
pub(crate) fn newest(state: &Path) -> io::Result<Option<u64>> {
    match numbers(state) {
        Ok(numbers) => Ok(numbers.into_iter().max()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number of the first journal that is still there.
pub(crate) fn oldest(state: &Path) -> io::Result<Option<u64>> {
    Ok(numbers(state)?.into_iter().min())
}

/// Copies what is about to be cut off, without the zeros behind it; returns how much that is.
fn keep_aside(state: &Path, journal: &Path, from: u64) -> io::Result<u64> {
    let mut source = File::open(journal)?;
    source.seek(SeekFrom::Start(from))?;
    let partial = state.join(format!("{CUT_FILE}.partial"));
    let mut copy = File::create(&partial)?;
    let mut step = vec![0; 64 << 10];
    let (mut copied, mut in_use) = (0, 0);
    loop {
        let read = source.read(&mut step)?;
        if read == 0 {
            break;
        }
        let bytes = &step[..read];
        match bytes.iter().rposition(|&byte| byte != 0) {
            Some(last) => {
                in_use = copied + last as u64 + 1;
                copy.write_all(bytes)?;
            }
            None => copy.seek(SeekFrom::Current(read as i64)).map(drop)?,
        }
        copied += read as u64;
    }
    copy.set_len(in_use)?;
    copy.sync_all()?;
    fs::rename(&partial, state.join(CUT_FILE))?;
    sync_folder(state)?;
    Ok(in_use)
}

/// Replaces a small file as a whole.
fn write_durably(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let partial = folder.join(format!("{name}.partial"));
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&partial, folder.join(name))?;
    sync_folder(folder)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// How far a journal can be read.
#[derive(Debug)]
struct Scan {
    /// Behind the last whole batch.
    end: u64,
    /// The highest sequence number of the whole batches; 0 if there are none.
    seqno: u64,
    /// Whether the mark that was looked for is among them.
    marked: bool,
    rest: Rest,
}

/// What follows the last whole batch.
#[derive(Debug)]
enum Rest {
    /// Nothing, or a batch of which the end has not been written. The engine takes that.
    Unwritten,
    Damaged {
        at: u64,
        reason: &'static str,
    },
}

fn scan(path: &Path, mark: u64) -> io::Result<Scan> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut reader = Batches {
        reader: BufReader::with_capacity(64 << 10, file),
        position: 0,
        length,
        mark: keys::journal_mark(mark),
    };
    let mut scan = Scan {
        end: 0,
        seqno: 0,
        marked: false,
        rest: Rest::Unwritten,
    };
    loop {
        match reader.next() {
            Ok(Some(batch)) => {
                scan.end = reader.position;
                scan.seqno = scan.seqno.max(batch.seqno);
                scan.marked |= batch.is_mark;
            }
            Ok(None) | Err(Stop::Short) => return Ok(scan),
            Err(Stop::Io(error)) => return Err(error),
            Err(Stop::Tag(at, reason)) => {
                if !reader.is_zero_from(at)? {
                    scan.rest = Rest::Damaged { at, reason };
                }
                return Ok(scan);
            }
            Err(Stop::Content(at, reason)) => {
                scan.rest = Rest::Damaged { at, reason };
                return Ok(scan);
            }
        }
    }
}

/// Why no further batch can be read.
enum Stop {
    Io(io::Error),
    /// The file ends inside a batch.
    Short,
    /// Something else was expected here: damage, unless there is nothing but zeros.
    Tag(u64, &'static str),
    /// Damage that the zeros of an unwritten end do not explain.
    Content(u64, &'static str),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Io(error)
    }
}

struct Whole {
    seqno: u64,
    is_mark: bool,
}

/// Reads batches as the engine writes them: a head (how many items, sequence number), the items, and
/// an end with the items' checksum and a fixed trailer.
struct Batches {
    reader: BufReader<File>,
    position: u64,
    length: u64,
    mark: [u8; keys::JOURNAL_MARK_BYTES],
}

impl Batches {
    fn next(&mut self) -> Result<Option<Whole>, Stop> {
        if self.position == self.length {
            return Ok(None);
        }
        let begin = self.position;
        if self.bytes::<1>()? != [BATCH] {
            return Err(Stop::Tag(begin, "no batch begins here"));
        }
        let items = u32::from_le_bytes(self.bytes()?);
        let seqno = u64::from_le_bytes(self.bytes()?);
        let mut hasher = Xxh3::new();
        let mut is_mark = false;
        for _ in 0..items {
            let at = self.position;
            let [tag] = self.bytes()?;
            hasher.update(&[tag]);
            match tag {
                ITEM => is_mark |= self.item(&mut hasher)?,
                CLEAR => hasher.update(&self.bytes::<8>()?),
                _ => return Err(Stop::Tag(at, "no item begins here")),
            }
        }
        let at = self.position;
        if self.bytes::<1>()? != [END] {
            return Err(Stop::Tag(at, "the batch does not end here"));
        }
        let sum = u64::from_le_bytes(self.bytes()?);
        let trailer_at = self.position;
        if self.bytes::<4>()? != TRAILER {
            return Err(Stop::Tag(trailer_at, "the batch's end is incomplete"));
        }
        if sum != hasher.finish() {
            return Err(Stop::Content(begin, "the batch's checksum does not fit"));
        }
        Ok(Some(Whole {
            seqno,
            is_mark: is_mark && items == 1,
        }))
    }

    /// Whether the item is the mark.
    fn item(&mut self, hasher: &mut Xxh3) -> Result<bool, Stop> {
        let at = self.position;
        let head: [u8; 20] = self.bytes()?;
        hasher.update(&head);
        let [value_type, compression, ..] = head;
        let key_bytes = u16::from_le_bytes([head[10], head[11]]);
        let value_bytes = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
        let bytes_on_disk = u32::from_le_bytes([head[16], head[17], head[18], head[19]]);
        if !VALUE_TYPES.contains(&value_type) || compression != 0 {
            return Err(Stop::Content(at, "an item of no known kind"));
        }
        if value_bytes != bytes_on_disk {
            return Err(Stop::Content(at, "an item of two lengths"));
        }
        let mut start = [0; keys::JOURNAL_MARK_BYTES];
        let is_mark = usize::from(key_bytes) == start.len() && value_type == TOMBSTONE;
        if is_mark {
            start = self.bytes()?;
            hasher.update(&start);
        } else {
            self.skip(u64::from(key_bytes), hasher)?;
        }
        self.skip(u64::from(value_bytes), hasher)?;
        Ok(is_mark && start == self.mark)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        if self.length - self.position < N as u64 {
            return Err(Stop::Short);
        }
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        self.position += N as u64;
        Ok(bytes)
    }

    fn skip(&mut self, mut count: u64, hasher: &mut Xxh3) -> Result<(), Stop> {
        if self.length - self.position < count {
            return Err(Stop::Short);
        }
        let mut step = [0; 4096];
        while count > 0 {
            let part = &mut step[..count.min(4096) as usize];
            self.reader.read_exact(part)?;
            hasher.update(part);
            self.position += part.len() as u64;
            count -= part.len() as u64;
        }
        Ok(())
    }

    fn is_zero_from(&mut self, at: u64) -> io::Result<bool> {
        self.reader.seek(SeekFrom::Start(at))?;
        let mut step = vec![0; 64 << 10];
        loop {
            let read = self.reader.read(&mut step)?;
            if read == 0 {
                return Ok(true);
            }
            if step[..read].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
        }
    }
}
