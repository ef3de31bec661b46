/**
 * The objects of OpenAI's API as its published description has them, in strict form: a member that is missing or of
 * another type, and one that neither OpenAI nor docs/openai.md knows, is an error.
 */
import { z } from 'zod';

const count = z.int().min(0);

const usage = z.strictObject({
  prompt_tokens: count,
  completion_tokens: count,
  total_tokens: count,
  prompt_tokens_details: z.strictObject({ cached_tokens: count }).optional(),
  completion_tokens_details: z.strictObject({ reasoning_tokens: count }).optional(),
});

const tokenLogprob = z.strictObject({
  token: z.string(),
  logprob: z.number(),
  bytes: z.array(z.int().min(0).max(255)).nullable(),
});
const chatLogprobs = z.strictObject({
  content: z.array(tokenLogprob.extend({ top_logprobs: z.array(tokenLogprob) })).nullable(),
  refusal: z.null(),
});
const completionLogprobs = z.strictObject({
  tokens: z.array(z.string()),
  token_logprobs: z.array(z.number().nullable()),
  top_logprobs: z.array(z.record(z.string(), z.number()).nullable()),
  text_offset: z.array(count),
});
const finishReason = z.enum(['stop', 'length', 'tool_calls']);
/** Ours: what a reasoning model writes before its answer, as DeepSeek's API, vLLM and SGLang name it. */
const reasoning_content = z.string().min(1).optional();
const toolCall = z.strictObject({
  id: z.string().min(1),
  type: z.literal('function'),
  function: z.strictObject({ name: z.string().min(1), arguments: z.string() }),
});

export const chatCompletion = z.strictObject({
  id: z.string().startsWith('chatcmpl-'),
  object: z.literal('chat.completion'),
  created: count,
  model: z.string(),
  choices: z.array(
    z.strictObject({
      index: count,
      message: z.strictObject({
        role: z.literal('assistant'),
        content: z.string().nullable(),
        refusal: z.null(),
        reasoning_content,
        tool_calls: z.array(toolCall).min(1).optional(),
      }),
      logprobs: chatLogprobs.nullable(),
      finish_reason: finishReason,
    }),
  ),
  usage,
});

const chunkHead = { id: z.string().startsWith('chatcmpl-'), created: count, model: z.string() };
const delta = z.strictObject({
  role: z.literal('assistant').optional(),
  content: z.string().optional(),
  reasoning_content,
  tool_calls: z
    .array(
      z.strictObject({
        index: count,
        id: z.string().min(1).optional(),
        type: z.literal('function').optional(),
        function: z.strictObject({ name: z.string().min(1).optional(), arguments: z.string() }),
      }),
    )
    .min(1)
    .optional(),
});

/** Where the client did not ask for usage: no chunk has the member at all. */
export const chatChunk = z.strictObject({
  ...chunkHead,
  object: z.literal('chat.completion.chunk'),
  choices: z
    .array(
      z.strictObject({
        index: count,
        delta,
        logprobs: chatLogprobs.nullable(),
        finish_reason: finishReason.nullable(),
      }),
    )
    .length(1),
});
/** Where it did: null in every chunk that has a choice, … */
export const chatChunkBeforeUsage = chatChunk.extend({ usage: z.null() });
/** … and the last one has nothing else. */
export const chatUsageChunk = chatChunk.extend({ choices: z.tuple([]), usage });

export const completion = z.strictObject({
  id: z.string().startsWith('cmpl-'),
  object: z.literal('text_completion'),
  created: count,
  model: z.string(),
  choices: z.array(
    z.strictObject({
      index: count,
      text: z.string(),
      logprobs: completionLogprobs.nullable(),
      finish_reason: finishReason,
    }),
  ),
  usage,
});
export const completionChunk = completion.omit({ usage: true }).extend({
  choices: z
    .array(
      z.strictObject({
        index: count,
        text: z.string(),
        logprobs: completionLogprobs.nullable(),
        finish_reason: finishReason.nullable(),
      }),
    )
    .length(1),
});
export const completionUsageChunk = completionChunk.extend({ choices: z.tuple([]), usage });

export const embeddings = z.strictObject({
  object: z.literal('list'),
  data: z.array(
    z.strictObject({
      object: z.literal('embedding'),
      index: count,
      embedding: z.union([z.array(z.number()), z.base64()]),
    }),
  ),
  model: z.string(),
  usage: z.strictObject({ prompt_tokens: count, total_tokens: count }),
});

export const model = z.strictObject({
  id: z.string(),
  object: z.literal('model'),
  created: count,
  owned_by: z.string(),
  // Ours: the models behind an alias of several; official clients ignore it.
  hpcserve: z
    .strictObject({ models: z.array(z.string()), precisions: z.array(z.string()), replicas: count })
    .optional(),
  /** Ours, as vLLM names them. */
  root: z.string(),
  max_model_len: count,
});
export const modelList = z.strictObject({ object: z.literal('list'), data: z.array(model) });

export const errorEnvelope = z.strictObject({
  error: z.strictObject({
    message: z.string().min(1),
    type: z.string().min(1),
    param: z.string().nullable(),
    code: z.string().nullable(),
  }),
});
