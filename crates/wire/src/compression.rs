//! OP_COMPRESSED's three compressors, safe against messages that claim or hold too much.

use std::io::Read;

use crate::frame::MESSAGE_BYTES_MAX;

/// A compressor that both ends speak. The number is its id on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    Noop = 0,
    Snappy = 1,
    Zlib = 2,
    Zstd = 3,
}

#[derive(Debug, thiserror::Error)]
pub enum CompressionError {
    #[error("unknown compressor {0}")]
    Unknown(u8),
    #[error("the message claims to be {0} bytes long uncompressed")]
    Size(i64),
    #[error("the message does not decompress to the {claimed} bytes that it claims")]
    Mismatch { claimed: usize },
    #[error("the compressed message is damaged: {0}")]
    Damaged(String),
}

/// Fast rather than small: messages travel on local networks.
const ZLIB_LEVEL: u32 = 3;
const ZSTD_LEVEL: i32 = 3;

impl Compressor {
    /// In the order of preference of this server.
    pub const ALL: [Compressor; 3] = [Compressor::Snappy, Compressor::Zstd, Compressor::Zlib];

    pub fn name(self) -> &'static str {
        match self {
            Compressor::Noop => "noop",
            Compressor::Snappy => "snappy",
            Compressor::Zlib => "zlib",
            Compressor::Zstd => "zstd",
        }
    }

    pub fn from_name(name: &str) -> Option<Compressor> {
        Compressor::ALL
            .into_iter()
            .find(|compressor| compressor.name() == name)
    }

    pub fn from_id(id: u8) -> Result<Compressor, CompressionError> {
        match id {
            0 => Ok(Compressor::Noop),
            1 => Ok(Compressor::Snappy),
            2 => Ok(Compressor::Zlib),
            3 => Ok(Compressor::Zstd),
            other => Err(CompressionError::Unknown(other)),
        }
    }

    pub fn compress(self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), CompressionError> {
        let damaged = |error: &dyn std::fmt::Display| CompressionError::Damaged(error.to_string());
        match self {
            Compressor::Noop => out.extend_from_slice(plain),
            Compressor::Snappy => {
                let compressed = snap::raw::Encoder::new()
                    .compress_vec(plain)
                    .map_err(|e| damaged(&e))?;
                out.extend_from_slice(&compressed);
            }
            Compressor::Zlib => {
                let level = flate2::Compression::new(ZLIB_LEVEL);
                flate2::read::ZlibEncoder::new(plain, level)
                    .read_to_end(out)
                    .map_err(|e| damaged(&e))?;
            }
            Compressor::Zstd => {
                let compressed =
                    zstd::bulk::compress(plain, ZSTD_LEVEL).map_err(|e| damaged(&e))?;
                out.extend_from_slice(&compressed);
            }
        }
        Ok(())
    }

    /// Appends the plain bytes to `out`; they must be exactly as many as `claimed` says. Never
    /// produces more than that, whatever the input holds.
    pub fn decompress(
        self,
        compressed: &[u8],
        claimed: i32,
        out: &mut Vec<u8>,
    ) -> Result<(), CompressionError> {
        let claimed = usize::try_from(claimed)
            .ok()
            .filter(|&size| size <= MESSAGE_BYTES_MAX)
            .ok_or(CompressionError::Size(claimed.into()))?;
        let mismatch = CompressionError::Mismatch { claimed };
        let damaged = |error: &dyn std::fmt::Display| CompressionError::Damaged(error.to_string());
        let start = out.len();
        match self {
            Compressor::Noop => {
                if compressed.len() != claimed {
                    return Err(mismatch);
                }
                out.extend_from_slice(compressed);
            }
            Compressor::Snappy => {
                let length = snap::raw::decompress_len(compressed).map_err(|e| damaged(&e))?;
                if length != claimed {
                    return Err(mismatch);
                }
                out.resize(start + claimed, 0);
                snap::raw::Decoder::new()
                    .decompress(compressed, &mut out[start..])
                    .map_err(|e| damaged(&e))?;
            }
            Compressor::Zlib => {
                let decoder = flate2::read::ZlibDecoder::new(compressed);
                decoder
                    .take(claimed as u64 + 1)
                    .read_to_end(out)
                    .map_err(|e| damaged(&e))?;
            }
            Compressor::Zstd => {
                let decoder = zstd::stream::read::Decoder::with_buffer(compressed)
                    .map_err(|e| damaged(&e))?;
                decoder
                    .take(claimed as u64 + 1)
                    .read_to_end(out)
                    .map_err(|e| damaged(&e))?;
            }
        }
        if out.len() - start != claimed {
            return Err(mismatch);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: [Compressor; 4] = [
        Compressor::Noop,
        Compressor::Snappy,
        Compressor::Zlib,
        Compressor::Zstd,
    ];

    #[test]
    fn what_goes_in_comes_out() {
        let plain: Vec<u8> = (0..10_000u32)
            .flat_map(|n| (n % 97).to_le_bytes())
            .collect();
        for compressor in EVERY {
            let mut packed = Vec::new();
            compressor.compress(&plain, &mut packed).unwrap();
            let mut back = b"head".to_vec();
            compressor
                .decompress(&packed, plain.len() as i32, &mut back)
                .unwrap();
            assert_eq!(&back[4..], &plain[..], "{compressor:?}");
        }
    }

    #[test]
    fn a_message_that_lies_about_its_size_is_refused() {
        let plain = vec![7u8; 1 << 20];
        for compressor in EVERY {
            let mut packed = Vec::new();
            compressor.compress(&plain, &mut packed).unwrap();
            for claimed in [0, 16, (1 << 20) - 1, (1 << 20) + 1, -1, i32::MAX] {
                let mut out = Vec::new();
                assert!(compressor.decompress(&packed, claimed, &mut out).is_err());
                assert!(
                    out.len() <= 1 << 21,
                    "{compressor:?} held {} bytes",
                    out.len()
                );
            }
        }
    }

    #[test]
    fn damaged_input_is_an_error() {
        for compressor in [Compressor::Snappy, Compressor::Zlib, Compressor::Zstd] {
            let junk: Vec<u8> = (0..200u32).map(|n| (n * 7919 % 251) as u8).collect();
            assert!(compressor.decompress(&junk, 5000, &mut Vec::new()).is_err());
            assert!(compressor.decompress(&[], 5000, &mut Vec::new()).is_err());
        }
    }
}
