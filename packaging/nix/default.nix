# nix-build packaging/nix
{ pkgs ? import <nixpkgs> { } }:

pkgs.stdenv.mkDerivation {
  pname = "multihead";
  version = "0.2.0";
  src = pkgs.lib.cleanSource ../..;
  nativeBuildInputs = with pkgs; [ cmake ninja pkg-config python3 ];
  buildInputs = with pkgs; [ libhwy nlohmann_json utf8proc fmt libevent libpng ];
  cmakeFlags = [ "-DMULTIHEAD_BUILD_TESTS=OFF" "-DMULTIHEAD_BUILD_EXAMPLES=OFF" ];
  meta = with pkgs.lib; {
    description = "Multi-head attention and Transformers on a CPU, trained and run";
    license = licenses.asl20;
    platforms = [ "x86_64-linux" "aarch64-linux" ];
    mainProgram = "multihead";
  };
}
