#include "server/rpc/decode_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "server/rpc/codec_messages.h"
#include "server/rpc/encode_reply.h"
#include "tests/server/rpc/test_requests.h"

namespace oscarkv {
namespace {

using testing::CreateRequest;
using ::testing::ElementsAre;
using testing::FieldOf;
using testing::ReasonOf;
using ::testing::SizeIs;

using Request = v1::CreateSessionRequest;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

SessionConfig Decoded(const Request& request) {
  absl::StatusOr<SessionConfig> config = DecodeCreateSession(request, Profile::kDense);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *std::move(config) : SessionConfig{};
}

void AddPrefixKey(std::int64_t length, std::size_t bytes, Request& request) {
  v1::PrefixKey& prefix = *request.add_prefix_keys();
  prefix.set_length(length);
  prefix.set_key(std::string(bytes, 'k'));
}

// A request as CreateRequest makes it, but for one thing that is wrong, and the field to be named.
struct Case {
  const char* field;
  std::function<void(Request&)> spoil;
};

v1::LayerSpec& Layer(Request& r) { return *r.mutable_layers(1); }
v1::Codec& Codec(Request& r) { return *r.mutable_codec(); }
v1::Codec& LayerCodec(Request& r) { return *Layer(r).mutable_codec(); }

void AddPlans(Request& r, int count, int direction) {
  LayerCodec(r).set_plan(v1::PLAN_MODE_GIVEN);
  for (int i = 0; i < count; ++i) {
    v1::KeyPlan& plan = *Layer(r).add_key_plans();
    plan.set_rotation(v1::ROTATION_NONE);
    plan.set_fit(v1::FIT_MINMAX);
    for (int c = 0; c < direction; ++c) plan.add_direction(2);
  }
}

void ExpectAllRefused(const std::vector<Case>& cases) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Request request = CreateRequest("s");
    cases[i].spoil(request);
    const absl::Status status = DecodeCreateSession(request, Profile::kDense).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << i << " " << cases[i].field;
    EXPECT_EQ(ReasonOf(status), "INVALID_FIELD") << i;
    EXPECT_EQ(FieldOf(status), cases[i].field) << i << " " << status;
    EXPECT_NE(testing::DetailOf(status, "expected"), "") << i;
  }
}

TEST(DecodeSessionTest, RefusesWrongNames) {
  ExpectAllRefused({
      {"session", [](Request& r) { r.clear_session(); }},
      {"session", [](Request& r) { r.set_session("a b"); }},
      {"session", [](Request& r) { r.set_session("a/b"); }},
      {"session", [](Request& r) { r.set_session(std::string(129, 'a')); }},
      {"session", [](Request& r) { r.set_session("\xc3\xa9"); }},
      {"request_id", [](Request& r) { r.clear_request_id(); }},
      {"request_id", [](Request& r) { r.set_request_id("a\nb"); }},
      {"request_id", [](Request& r) { r.set_request_id(std::string(129, 'a')); }},
      {"tenant", [](Request& r) { r.set_tenant("a b"); }},
      {"tenant", [](Request& r) { r.set_tenant(std::string(129, 'a')); }},
      {"group", [](Request& r) { r.set_group("a*b"); }},
      {"model", [](Request& r) { r.set_model(std::string(257, 'a')); }},
      {"model_revision", [](Request& r) { r.set_model_revision(std::string(257, 'a')); }},
      {"rope_digest", [](Request& r) { r.set_rope_digest(std::string(257, 'a')); }},
      {"position_base", [](Request& r) { r.set_position_base(-1); }},
      {"rollback_tokens", [](Request& r) { r.set_rollback_tokens(-1); }},
      {"prefix_keys[0].length", [](Request& r) { AddPrefixKey(0, 8, r); }},
      {"prefix_keys[0].key", [](Request& r) { AddPrefixKey(1, 7, r); }},
      {"prefix_keys[0].key", [](Request& r) { AddPrefixKey(1, 65, r); }},
      {"prefix_keys[1].length",
       [](Request& r) {
         AddPrefixKey(9, 8, r);
         AddPrefixKey(9, 8, r);
       }},
      {"prefix_keys",
       [](Request& r) {
         for (int i = 1; i <= 4097; ++i) AddPrefixKey(i, 8, r);
       }},
      {"position_base",
       [](Request& r) { r.set_position_base(std::numeric_limits<std::int64_t>::max()); }},
      {"storage_dtype", [](Request& r) { r.set_storage_dtype(v1::DATA_TYPE_FP32); }},
      {"storage_dtype", [](Request& r) { r.set_storage_dtype(static_cast<v1::DataType>(9)); }},
  });
}

TEST(DecodeSessionTest, RefusesWrongLayers) {
  ExpectAllRefused({
      {"layers", [](Request& r) { r.clear_layers(); }},
      {"layers",
       [](Request& r) {
         while (r.layers_size() <= 1024) *r.add_layers() = r.layers(0);
       }},
      {"layers[1].layer", [](Request& r) { Layer(r).set_layer(0); }},
      {"layers[1].layer", [](Request& r) { Layer(r).set_layer(-1); }},
      {"layers[1].layer", [](Request& r) { Layer(r).set_layer(65536); }},
      {"layers[1].kv_heads", [](Request& r) { Layer(r).set_kv_heads(0); }},
      {"layers[1].kv_heads", [](Request& r) { Layer(r).set_kv_heads(-2); }},
      {"layers[1].kv_heads", [](Request& r) { Layer(r).set_kv_heads(1025); }},
      {"layers[1].query_heads", [](Request& r) { Layer(r).set_query_heads(0); }},
      {"layers[1].query_heads", [](Request& r) { Layer(r).set_query_heads(-4); }},
      {"layers[1].query_heads", [](Request& r) { Layer(r).set_query_heads(3); }},
      {"layers[1].query_heads", [](Request& r) { Layer(r).set_query_heads(34); }},
      {"layers[1].key_dim", [](Request& r) { Layer(r).set_key_dim(0); }},
      {"layers[1].key_dim", [](Request& r) { Layer(r).set_key_dim(72); }},
      {"layers[1].key_dim", [](Request& r) { Layer(r).set_key_dim(512); }},
      {"layers[1].value_dim", [](Request& r) { Layer(r).set_value_dim(-1); }},
      {"layers[1].value_dim", [](Request& r) { Layer(r).set_value_dim(100); }},
      {"layers[1].scale", [](Request& r) { Layer(r).set_scale(-1); }},
      {"layers[1].scale", [](Request& r) { Layer(r).set_scale(kNan); }},
      {"layers[1].scale", [](Request& r) { Layer(r).set_scale(kInfinity); }},
      {"layers[1].softcap", [](Request& r) { Layer(r).set_softcap(-1); }},
      {"layers[1].softcap", [](Request& r) { Layer(r).set_softcap(kInfinity); }},
      {"layers[1].sliding_window", [](Request& r) { Layer(r).set_sliding_window(-1); }},
      {"layers[1].sink_logits", [](Request& r) { Layer(r).add_sink_logits(1); }},
      {"layers[1].sink_logits[2]",
       [](Request& r) {
         for (const float x : {0.0f, 1.0f, kNan, 0.0f}) Layer(r).add_sink_logits(x);
       }},
  });
}

TEST(DecodeSessionTest, RefusesWrongCodecs) {
  const auto unknown = []<typename Enum>(Enum) { return static_cast<Enum>(99); };
  ExpectAllRefused({
      {"codec.profile", [&](Request& r) { Codec(r).set_profile(unknown(v1::Profile())); }},
      {"codec.key_bits", [](Request& r) { Codec(r).set_key_bits(3); }},
      {"codec.value_bits", [](Request& r) { Codec(r).set_value_bits(-2); }},
      {"codec.key_group", [&](Request& r) { Codec(r).set_key_group(unknown(v1::GroupSize())); }},
      {"codec.value_group",
       [&](Request& r) { Codec(r).set_value_group(unknown(v1::GroupSize())); }},
      {"codec.fit", [&](Request& r) { Codec(r).set_fit(unknown(v1::Fit())); }},
      {"codec.plan", [&](Request& r) { Codec(r).set_plan(unknown(v1::PlanMode())); }},
      {"codec.key_rotation", [](Request& r) { Codec(r).set_key_rotation(v1::ROTATION_NONE); }},
      {"codec.key_rotation",
       [](Request& r) {
         Codec(r).set_plan(v1::PLAN_MODE_GIVEN);
         Codec(r).set_key_rotation(v1::ROTATION_FOLDED);
       }},
      {"codec.value_rotation",
       [&](Request& r) { Codec(r).set_value_rotation(unknown(v1::Rotation())); }},
      {"codec.scaling", [&](Request& r) { Codec(r).set_scaling(unknown(v1::Scaling())); }},
      {"codec.residual", [&](Request& r) { Codec(r).set_residual(unknown(v1::Residual())); }},
      {"codec.window", [](Request& r) { Codec(r).set_window(0); }},
      {"codec.window", [](Request& r) { Codec(r).set_window(4097); }},
      {"codec.sinks", [](Request& r) { Codec(r).set_sinks(-1); }},
      {"codec.sinks", [](Request& r) { Codec(r).set_sinks(129); }},
      {"layers[1].codec.key_bits", [](Request& r) { LayerCodec(r).set_key_bits(8); }},
      {"layers[1].codec.window", [](Request& r) { LayerCodec(r).set_window(-1); }},
  });
}

TEST(DecodeSessionTest, RefusesWrongKeyPlans) {
  ExpectAllRefused({
      {"layers[1].key_plans",
       [](Request& r) {
         AddPlans(r, 2, 0);
         LayerCodec(r).clear_plan();
       }},
      {"layers[1].key_plans", [](Request& r) { AddPlans(r, 1, 0); }},
      {"layers[1].key_plans", [](Request& r) { AddPlans(r, 3, 0); }},
      {"layers[1].key_plans[0].rotation",
       [](Request& r) {
         AddPlans(r, 2, 0);
         Layer(r).mutable_key_plans(0)->clear_rotation();
       }},
      {"layers[1].key_plans[1].rotation",
       [](Request& r) {
         AddPlans(r, 2, 0);
         Layer(r).mutable_key_plans(1)->set_rotation(v1::ROTATION_FOLDED);
       }},
      {"layers[1].key_plans[1].fit",
       [](Request& r) {
         AddPlans(r, 2, 0);
         Layer(r).mutable_key_plans(1)->clear_fit();
       }},
      {"layers[1].key_plans[0].direction", [](Request& r) { AddPlans(r, 2, 63); }},
      {"layers[1].key_plans[1].direction",
       [](Request& r) {
         AddPlans(r, 2, 64);
         Layer(r).mutable_key_plans(1)->clear_direction();
       }},
      {"layers[1].key_plans[1].direction",
       [](Request& r) {
         AddPlans(r, 2, 0);
         Layer(r).mutable_key_plans(1)->add_direction(1);
       }},
      {"layers[1].key_plans[0].direction",
       [](Request& r) {
         AddPlans(r, 2, 64);
         Layer(r).mutable_key_plans(0)->set_direction(3, kNan);
       }},
      {"layers[1].key_plans[0].direction",
       [](Request& r) {
         AddPlans(r, 2, 64);
         for (float& x : *Layer(r).mutable_key_plans(0)->mutable_direction()) x = 0;
       }},
  });
}

TEST(DecodeSessionTest, FillsInDefaults) {
  const SessionConfig config = Decoded(CreateRequest("s"));
  EXPECT_EQ(config.storage, DType::kBF16);
  ASSERT_THAT(config.layers, SizeIs(2));
  const LayerSpec& spec = config.layers[1];
  EXPECT_EQ(spec.value_dim, 64);
  EXPECT_FLOAT_EQ(spec.scale, 0.125f);
  EXPECT_EQ(spec.codec.key_bits, 2);
  EXPECT_EQ(spec.codec.plan, PlanMode::kAuto);
  EXPECT_EQ(spec.codec.window, 128);
  EXPECT_EQ(spec.codec.sinks, 4);
  EXPECT_TRUE(spec.given_plan.empty());
}

TEST(DecodeSessionTest, TheServersProfileIsTheDefault) {
  const auto config = DecodeCreateSession(CreateRequest("s"), Profile::kKivi);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->layers[0].codec.scaling, Scaling::kNone);
  EXPECT_THAT(config->layers[0].given_plan, SizeIs(2));
}

TEST(DecodeSessionTest, ALayersCodecWithoutAProfileStartsFromTheSessions) {
  Request request = CreateRequest("s");
  Codec(request).set_profile(v1::PROFILE_PAPER);
  Codec(request).set_value_bits(4);
  Codec(request).set_sinks(8);
  Codec(request).set_window(64);
  LayerCodec(request).set_sinks(0);
  LayerCodec(request).set_key_bits(4);
  const SessionConfig config = Decoded(request);
  ASSERT_THAT(config.layers, SizeIs(2));
  const CodecSpec& codec = config.layers[1].codec;
  EXPECT_EQ(codec.key_bits, 4);
  EXPECT_EQ(codec.value_bits, 4);
  EXPECT_EQ(codec.key_group, 32);
  EXPECT_EQ(codec.sinks, 0);
  EXPECT_EQ(codec.window, 64);
  EXPECT_EQ(config.layers[1].given_plan[0].fit, Fit::kMinMax);
  EXPECT_EQ(config.layers[0].codec.key_bits, 2);
  EXPECT_EQ(config.layers[0].codec.sinks, 8);
}

// How PLAN_MODE_AUTO in one codec and key_rotation in the other go together.
TEST(DecodeSessionTest, ALayerThatSetsAutoDropsTheSessionsKeyRotation) {
  Request request = CreateRequest("s");
  Codec(request).set_plan(v1::PLAN_MODE_GIVEN);
  Codec(request).set_key_rotation(v1::ROTATION_NONE);
  LayerCodec(request).set_plan(v1::PLAN_MODE_AUTO);
  const SessionConfig config = Decoded(request);
  ASSERT_THAT(config.layers, SizeIs(2));
  EXPECT_EQ(config.layers[0].given_plan[0].rotation, Rotation::kNone);
  EXPECT_EQ(config.layers[1].codec.plan, PlanMode::kAuto);
  EXPECT_TRUE(config.layers[1].given_plan.empty());

  const auto refused = [&] {
    return FieldOf(DecodeCreateSession(request, Profile::kDense).status());
  };
  LayerCodec(request).set_key_rotation(v1::ROTATION_NONE);
  EXPECT_EQ(refused(), "layers[1].codec.key_rotation");
  // The plan of a profile or of the session is as good as one that is set.
  LayerCodec(request).clear_plan();
  LayerCodec(request).set_profile(v1::PROFILE_DENSE);
  EXPECT_EQ(refused(), "layers[1].codec.key_rotation");
  LayerCodec(request).clear_profile();
  request.clear_codec();
  EXPECT_EQ(refused(), "layers[1].codec.key_rotation");
  Codec(request).set_plan(v1::PLAN_MODE_GIVEN);
  EXPECT_EQ(Decoded(request).layers[1].given_plan[0].rotation, Rotation::kNone);
}

TEST(DecodeSessionTest, ALayersCodecWithAProfileIgnoresTheSessions) {
  Request request = CreateRequest("s");
  Codec(request).set_profile(v1::PROFILE_PAPER);
  Codec(request).set_value_bits(4);
  Codec(request).set_key_rotation(v1::ROTATION_NONE);
  Codec(request).set_sinks(8);
  LayerCodec(request).set_profile(v1::PROFILE_PRECISE);
  LayerCodec(request).set_sinks(0);
  LayerCodec(request).set_residual(v1::RESIDUAL_OFF);
  LayerCodec(request).set_value_rotation(v1::ROTATION_FOLDED);
  const SessionConfig config = Decoded(request);
  ASSERT_THAT(config.layers, SizeIs(2));
  EXPECT_EQ(config.layers[0].codec.key_group, 32);
  EXPECT_EQ(config.layers[0].codec.sinks, 8);
  EXPECT_EQ(config.layers[0].given_plan[1].fit, Fit::kMinMax);
  const CodecSpec& codec = config.layers[1].codec;
  EXPECT_EQ(codec.key_bits, 4);
  EXPECT_EQ(codec.value_bits, 2);
  EXPECT_EQ(codec.plan, PlanMode::kAuto);
  EXPECT_EQ(codec.key_group, kPageTokens);
  EXPECT_EQ(codec.sinks, 0);
  EXPECT_FALSE(codec.residual);
  EXPECT_EQ(codec.value_rotation, Rotation::kNone);
  EXPECT_THAT(config.value_folded, ElementsAre(false, true));
}

TEST(DecodeSessionTest, LayersAreSortedAndDirectionsNormalized) {
  Request request = CreateRequest("s");
  AddPlans(request, 2, 64);
  request.mutable_layers(0)->set_layer(7);
  Layer(request).set_layer(3);
  const SessionConfig config = Decoded(request);
  ASSERT_THAT(config.layers, SizeIs(2));
  EXPECT_EQ(config.layers[0].layer, 3);
  EXPECT_EQ(config.layers[1].layer, 7);
  ASSERT_THAT(config.layers[0].given_directions, SizeIs(128));
  EXPECT_FLOAT_EQ(config.layers[0].given_directions[100], 0.125f);
  EXPECT_EQ(config.layers[0].given_plan[0].rotation, Rotation::kNone);
}

TEST(DecodeSessionTest, EqualRequestsHaveEqualDigests) {
  const std::string digest = Decoded(CreateRequest("s")).content_digest;
  EXPECT_EQ(digest, Decoded(CreateRequest("s")).content_digest);
  Request other = CreateRequest("s");
  Layer(other).set_softcap(30);
  EXPECT_NE(digest, Decoded(other).content_digest);
}

// What a session is told to be can be sent again and makes the same session.
TEST(DecodeSessionTest, AnEncodedSessionDecodesToTheSameLayers) {
  for (const v1::Profile profile :
       {v1::PROFILE_DENSE, v1::PROFILE_PRECISE, v1::PROFILE_PAPER, v1::PROFILE_KIVI}) {
    Request request = CreateRequest("s");
    Codec(request).set_profile(profile);
    LayerCodec(request).set_window(64);
    LayerCodec(request).set_value_rotation(v1::ROTATION_FOLDED);
    AddPlans(request, 2, 64);
    SessionInfo info;
    info.config = std::make_shared<SessionConfig>(Decoded(request));
    info.layers.resize(2);
    v1::Session session;
    EncodeSession(info, SessionParts::kAll, session);
    Request again = CreateRequest("s");
    *again.mutable_layers() = session.layers();
    SessionInfo info_again;
    info_again.config = std::make_shared<SessionConfig>(Decoded(again));
    info_again.layers.resize(2);
    v1::Session session_again;
    EncodeSession(info_again, SessionParts::kAll, session_again);
    EXPECT_EQ(session.layers(1).ShortDebugString(), session_again.layers(1).ShortDebugString());
    EXPECT_EQ(session.layers(0).ShortDebugString(), session_again.layers(0).ShortDebugString());
  }
}

}  // namespace
}  // namespace oscarkv
