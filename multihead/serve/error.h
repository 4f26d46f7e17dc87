// A client is told this when its request cannot be answered.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "multihead/core/error.h"

namespace multihead::serve {

/// An HTTP status with a message. Dialects differ in the JSON around it.
class ApiError : public detail::ErrorAs<std::runtime_error> {
 public:
  /// `param`: the member of the request that is to blame, if it is one; `code`: a word for programs.
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : ErrorAs(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  /// With the methods that a path takes, of a 405.
  ApiError& allowing(std::string methods) {
    methods_ = std::move(methods);
    return *this;
  }

  int status() const { return status_; }
  const std::string& methods() const { return methods_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  /// Seconds after which to try again; 0: trying again does not help.
  int retry_after() const { return status_ == 429 || status_ == 503 ? 1 : 0; }

 private:
  int status_;
  std::string param_, code_, methods_;
};

}  // namespace multihead::serve
