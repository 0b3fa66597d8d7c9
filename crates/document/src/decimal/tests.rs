use std::cmp::Ordering;

use bson::Decimal128;

use super::{Decimal, Rounding};

fn decimal(text: &str) -> Decimal {
    Decimal::parse(text).unwrap()
}

#[test]
fn decodes_and_encodes_like_the_bson_crate() {
    for text in [
        "0",
        "-0",
        "1",
        "1.20",
        "-12.5E+3",
        "9.999999999999999999999999999999999E+6144",
        "1E-6176",
        "NaN",
        "Infinity",
        "-Infinity",
        "0E+3",
        "0.000001",
    ] {
        let bytes: Decimal128 = text.parse().unwrap();
        let ours = Decimal::from_bson(bytes);
        assert_eq!(ours.to_bson(), bytes, "{text}");
        assert_eq!(decimal(text), ours, "{text}");
    }
}

#[test]
fn arithmetic_keeps_preferred_exponents() {
    let cases = [
        (decimal("1.20").add(decimal("3")), "4.20"),
        (decimal("1.20").multiply(decimal("3.0")), "3.600"),
        (
            decimal("1").divide(decimal("3")),
            "0.3333333333333333333333333333333333",
        ),
        (
            decimal("2").divide(decimal("3")),
            "0.6666666666666666666666666666666667",
        ),
        (decimal("10").divide(decimal("2")), "5"),
        (decimal("1E3").divide(decimal("4")), "2.5E+2"),
        (decimal("100").divide(decimal("1E1")), "10.0"),
        (decimal("-5.5").remainder(decimal("2")), "-1.5"),
        (decimal("1E30").remainder(decimal("7")), "1"),
        (decimal("2").sqrt(), "1.414213562373095048801688724209698"),
        (decimal("4").sqrt(), "2"),
        (
            decimal("1E33").add(decimal("1E-40")),
            "1000000000000000000000000000000000",
        ),
        (
            decimal("1").subtract(decimal("1E-90")),
            "1.000000000000000000000000000000000",
        ),
        (decimal("9.9E6144").multiply(decimal("10")), "Infinity"),
        (decimal("1E-6176").divide(decimal("10")), "0E-6176"),
        (decimal("2.5").round_to(0, Rounding::HalfEven), "2"),
        (decimal("-2.5").round_to(0, Rounding::Floor), "-3"),
        (decimal("1234").round_to(-2, Rounding::HalfEven), "1.2E+3"),
    ];
    for (got, expected) in cases {
        assert_eq!(got.to_string(), expected);
    }
}

#[test]
fn doubles_convert_at_15_and_at_34_digits() {
    assert_eq!(Decimal::from_f64(0.1).to_string(), "0.100000000000000");
    assert_eq!(Decimal::from_f64(2.5).to_string(), "2.50000000000000");
    assert_eq!(Decimal::from_f64(1e15).to_string(), "1.00000000000000E+15");
    assert_eq!(
        Decimal::from_f64_exact(0.1).to_string(),
        "0.1000000000000000055511151231257827"
    );
    assert_eq!(Decimal::from_f64_exact(2.5).to_string(), "2.5");
}

#[test]
fn compares_exactly_with_doubles() {
    assert_eq!(decimal("0.1").compare_f64(0.1), Ordering::Less);
    assert_eq!(decimal("0.50").compare_f64(0.5), Ordering::Equal);
    assert_eq!(decimal("1E400").compare_f64(f64::MAX), Ordering::Greater);
    assert_eq!(
        decimal("-1E-400").compare_f64(-f64::MIN_POSITIVE),
        Ordering::Greater
    );
    assert_eq!(Decimal::NaN.compare_f64(f64::NEG_INFINITY), Ordering::Less);
    assert_eq!(Decimal::NaN.compare_f64(f64::NAN), Ordering::Equal);
}

#[test]
fn texts_of_any_length_are_rounded_once() {
    let zeros = "0".repeat(400_000);
    for (text, expected) in [
        (
            format!("1{zeros}1E-400001"),
            "1.000000000000000000000000000000000",
        ),
        (format!("0.{zeros}5E400001"), "5"),
        (format!("{zeros}12.5"), "12.5"),
        (
            "1".repeat(34) + "5",
            "1.111111111111111111111111111111112E+34",
        ),
        (
            "1".repeat(33) + "25",
            "1.111111111111111111111111111111112E+34",
        ),
        (
            format!("{}25{zeros}1E-400001", "1".repeat(33)),
            "1.111111111111111111111111111111113E+34",
        ),
        ("9".repeat(400_000), "Infinity"),
        (
            "9".repeat(400_000) + "E-399999",
            "10.00000000000000000000000000000000",
        ),
        (format!("1E{}", "9".repeat(100)), "Infinity"),
        (format!("1E-{}", "9".repeat(100)), "0E-6176"),
    ] {
        assert_eq!(decimal(&text).to_string(), expected, "{:.40}…", text);
    }
    for text in ["", "-", ".", "1.2.3", "1e", "1e+", "1x", "+-1", "é"] {
        assert_eq!(Decimal::parse(text), None, "{text:?}");
    }
}
