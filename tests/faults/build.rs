//! Builds the library that is preloaded into the members (`preload/lib.rs`): it stands alone, as
//! whatever it links would run inside of the programs under test.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=preload");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a folder"));
    let library = out.join("libbanyan_faults_preload.so");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        let rustc = env::var_os("RUSTC").expect("cargo names the compiler");
        let target = env::var("TARGET").expect("cargo names the target");
        let status = Command::new(rustc)
            .args([
                "--crate-name",
                "banyan_faults_preload",
                "--crate-type",
                "cdylib",
            ])
            .args(["--edition", "2024", "-O", "-C", "panic=abort", "--target"])
            .arg(target)
            .arg("preload/lib.rs")
            .arg("-o")
            .arg(&library)
            .status()
            .expect("the compiler runs");
        assert!(status.success(), "preload/lib.rs does not compile");
    }
    println!(
        "cargo:rustc-env=BANYAN_FAULTS_PRELOAD={}",
        library.display()
    );
}
