"""GridFS from pymongo, against the address given."""

import io
import sys

import gridfs
import pymongo

client = pymongo.MongoClient(sys.argv[1], serverSelectionTimeoutMS=20000)
client.drop_database("files_py")
db = client.files_py

bucket = gridfs.GridFSBucket(db, bucket_name="photos", chunk_size_bytes=1024)
first = bucket.upload_from_stream("a", io.BytesIO(bytes(range(250)) * 20), metadata={"owner": "ann"})
second = bucket.upload_from_stream("a", b"second")
with bucket.open_upload_stream_with_id("mine", "b") as upload:
    upload.write(b"one ")
    upload.write(b"two")
aborted = bucket.open_upload_stream("c")
aborted.write(b"x" * 3000)
aborted.abort()
assert db.photos.chunks.count_documents({}) == 5 + 1 + 1
assert db.photos.chunks.index_information()["files_id_1_n_1"]["unique"]
assert db.photos.files.index_information()["filename_1_uploadDate_1"]["key"] == [("filename", 1), ("uploadDate", 1)]
copied = io.BytesIO()
bucket.download_to_stream_by_name("a", copied, revision=0)
assert copied.getvalue() == bytes(range(250)) * 20
assert bucket.open_download_stream_by_name("a").read() == b"second"
assert bucket.open_download_stream("mine").read() == b"one two"
part = bucket.open_download_stream(first)
part.seek(4990)
assert part.read() == bytes(range(240, 250))
bucket.rename(second, "z")
bucket.delete(first)
assert sorted(file.filename for file in bucket.find({})) == ["b", "z"]
assert [file.length for file in bucket.find({"filename": "z"})] == [6]

files = gridfs.GridFS(db)
for n in range(3):
    files.put(b"version %d" % n, filename="versions")
assert files.get_last_version("versions").read() == b"version 2" and files.get_version("versions", 0).read() == b"version 0"
whole = files.put(b"x" * 600_000, _id=1, filename="whole")
assert files.exists(whole) and sorted(files.list()) == ["versions", "whole"]
for damage, expected in ((lambda: files.put(b"y", _id=1), gridfs.errors.FileExists),
                         (lambda: db.fs.chunks.delete_one({"files_id": 1, "n": 1}) and files.get(1).read(), gridfs.errors.CorruptGridFile),
                         (lambda: files.get("nothing"), gridfs.errors.NoFile)):
    try:
        damage()
        raise AssertionError(f"no {expected}")
    except expected:
        pass
client.drop_database("files_py")
print("files complete")
