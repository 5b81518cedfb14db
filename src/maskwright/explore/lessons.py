"""The guided path: short lessons, each with the state of the page that shows what it says."""

from __future__ import annotations

from typing import Any, Final

# What every lesson sets, so that nothing is left of the one before.
PLAIN: Final[dict[str, Any]] = {
    "expression": "causal()",
    "text": None,
    "side": "right",
    "padding": True,
    "size": 8,
    "keys": None,
    "q_start": None,
    "batches": None,
    "heads": None,
    "others": [],
    "values": None,
    "scores": None,
    "seed": 0,
    "width": 3,
    "head_size": 2,
    "scaled": True,
    "fill": "-inf",
    "rows_too": False,
    "steps_view": "steps",
    "panel": "steps",
}


def lessons() -> list[dict[str, Any]]:
    """All lessons, in order.

    >>> lessons()[1]["state"]["scores"]
    [[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]]
    """
    return [
        {
            "id": name,
            "title": {"en": lesson["title"][0], "zh": lesson["title"][1]},
            "text": {"en": lesson["en"], "zh": lesson["zh"]},
            "state": {**PLAIN, **lesson["state"]},
            "look": {"en": lesson["look"][0], "zh": lesson["look"][1]},
        }
        for name, lesson in LESSONS.items()
    ]


LESSONS: Final[dict[str, dict[str, Any]]] = {
    "why": {
        "title": ("Why attention needs masks", "注意力为什么需要掩码"),
        "en": [
            "Attention lets every token look at every other one. That is too much in two cases.",
            "A model that learns to write must not look at the words that it is about to write. "
            "And sentences of a batch differ in length, so the short ones are filled up with "
            "<PAD>, which means nothing and should not be looked at.",
            "A mask says for every query (row) which keys (columns) it may see. That is all.",
        ],
        "zh": [
            "注意力让每个词元都能看到其他所有词元。但有两种情况不该这样。",
            "学习写作的模型，不能偷看它接下来要写的词。另外，一批句子长短不一，"
            "短句要用 <PAD> 补齐，这些填充没有意义，不该被看到。",
            "掩码说的就是一件事：每个查询（行）可以看到哪些键（列）。",
        ],
        "state": {"text": "I like green tea", "query": 1, "key": 2},
        "look": (
            "The grid: row “like” sees “I” and “like”. Click another cell to read why.",
            "看网格：“like”这一行只看得到“I”和“like”。点别的格子，可以看到原因。",
        ),
    },
    "causal-by-hand": {
        "title": ("A causal mask by hand", "手算一个因果掩码"),
        "en": [
            "Three tokens, nine scores. The causal mask keeps the lower left: a token sees itself "
            "and what came before it.",
            "Hidden scores become −∞ before the softmax, so that their weights are exactly 0 and "
            "the rest of the row still adds up to 1.",
            "The first token has only itself: weight 1. The last row sees all three, and gets "
            "0.2186, 0.4864 and 0.2950.",
        ],
        "zh": [
            "三个词元，九个分数。因果掩码保留左下角：一个词元只能看到自己和它前面的词元。",
            "在 softmax 之前，把被遮住的分数改成 −∞，它们的权重就正好是 0，"
            "这一行剩下的权重加起来仍然是 1。",
            "第一个词元只能看自己，权重为 1；最后一行三个都能看到，"
            "权重是 0.2186、0.4864 和 0.2950。",
        ],
        "state": {
            "text": "I like tea",
            "scores": [[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]],
        },
        "look": (
            "The weights. Change a score in the upper right: nothing moves, for it is hidden.",
            "看权重。试着改右上角的分数：什么都不会变，因为它被遮住了。",
        ),
    },
    "triu-or-tril": {
        "title": ("triu or tril?", "用 triu 还是 tril？"),
        "en": [
            "Both are right, of different things. tril(ones) holds 1 where a query may look: the "
            "lower left with the diagonal. triu(ones, diagonal=1) holds 1 where it may not.",
            "So one is the other turned round, and code must say which of both it means. Here True "
            "always means “may see”.",
            "The classic slip is triu without diagonal=1: then a token can't see itself, and the "
            "first row sees nothing at all.",
        ],
        "zh": [
            "两个都对，只是含义不同。tril(ones) 在可以看的地方是 1：左下角，含对角线；"
            "triu(ones, diagonal=1) 则在不能看的地方是 1。",
            "两者正好相反，所以代码必须说清楚用的是哪一种。在这里，True 总是表示“可以看”。",
            "最常见的失误是 triu 忘了写 diagonal=1：词元连自己都看不到，第一行更是什么都看不到。",
        ],
        "state": {
            "size": 5,
            "others": ["~causal()", "~(causal().T)"],
            "panel": "compare",
        },
        "look": (
            "~causal() is triu(…, diagonal=1) and differs everywhere. ~(causal().T) is what stays "
            "visible when triu without diagonal=1 hides: the diagonal is lost.",
            "~causal() 就是 triu(…, diagonal=1)，与因果掩码处处相反。~(causal().T) 是"
            "漏写 diagonal=1 后还看得见的部分：对角线丢了。",
        ),
    },
    "padding": {
        "title": ("Padding in a batch", "一批句子里的填充"),
        "en": [
            "Two sentences of 3 and 4 tokens are put into 5 places. What is left over is <PAD>.",
            "The padding mask hides these columns: in the first sentence the last two, in the "
            "second the last one. All queries of a sentence get the same row, so a shape of "
            "(B, 1, 1, T) holds all of it.",
        ],
        "zh": [
            "两个句子，分别有 3 个和 4 个词元，都放进 5 个位置，多出来的位置是 <PAD>。",
            "填充掩码遮住的是列：第一句的最后两列，第二句的最后一列。"
            "同一句里每个查询的那一行都一样，所以用 (B, 1, 1, T) 的形状就够了。",
        ],
        "state": {
            "expression": "padding(lengths=[3, 4])",
            "size": 5,
            "panel": "compare",
            "others": ["everything()"],
        },
        "look": (
            "Switch between batch 0 and batch 1, and move the sliders of the lengths.",
            "在 batch 0 和 batch 1 之间切换，再拖动两个长度滑块。",
        ),
    },
    "column-not-row": {
        "title": ("Hide the column, keep the row", "遮住列，留下行"),
        "en": [
            "Nobody should look at <PAD>: its column is hidden. But the row of <PAD> may stay. "
            "What it computes is thrown away anyway, because the loss does not count it.",
            "Hiding the row as well leaves a row in which all is hidden. With a fill of −1e9 all "
            "its scores are the same, and softmax gives each key 1/4: a mean over everything, "
            "padding and future too. With −∞ naive code divides 0 by 0, which is NaN; here such a "
            "row gives zeros.",
        ],
        "zh": [
            "谁都不该看 <PAD>，所以遮住它那一列。但 <PAD> 那一行可以留着："
            "它算出来的结果反正不进损失函数，会被丢掉。",
            "如果连行也遮住，这一行就全被遮住了。填 −1e9 时，整行分数都一样，"
            "softmax 会给每个键 1/4：等于把所有词元（包括填充和未来）平均了一遍。"
            "填 −∞ 时，普通的写法会算出 0/0，也就是 NaN；在这里，这样的行给出全 0。",
        ],
        "state": {
            "expression": "everything()",
            "text": "a b c <PAD>",
            "fill": -1e9,
            "rows_too": True,
        },
        "look": (
            "The last row of the weights is 0.25 everywhere. Choose −∞: it becomes 0. Untick "
            "“hide padded rows too”: it is an ordinary row.",
            "看权重的最后一行：全是 0.25。改选 −∞，它变成全 0；"
            "取消“填充词元的行也遮住”，它就是普通的一行。",
        ),
    },
    "combined": {
        "title": ("Causal and padding together", "因果掩码加填充掩码"),
        "en": [
            "A decoder needs both: a token may look at what came before it, and of that only at "
            "real tokens. Both must allow a cell, so they are joined by & (and).",
            "Each mask may be right, and their sum still wrong: adding two masks of −1e9 gives "
            "−2e9 in some places, and in small number types an overflow. Join them as truth values, "
            "then turn them into numbers once.",
        ],
        "zh": [
            "解码器两样都要：词元只能看它前面的内容，而且其中只有真实词元才算数。"
            "两个掩码都允许才行，所以用 &（与）连起来。",
            "每个掩码单独都对，加起来却可能出错：两个 −1e9 相加，有些格子成了 −2e9，"
            "换成低精度类型还会溢出。应当先用布尔值合并，最后再转成数。",
        ],
        "state": {
            "expression": "causal() & padding(lengths=[3, 4])",
            "size": 5,
            "panel": "compare",
            "others": ["causal()", "padding(lengths=[3, 4])"],
            "query": 4,
            "key": 3,
        },
        "look": (
            "Query 4, key 3: causal() would allow it, the padding stops it.",
            "查询 4、键 3：causal() 本会放行，是填充拦下了它。",
        ),
    },
    "three-masks": {
        "title": ("No mask, padding, look-ahead", "不用掩码、填充掩码、前瞻掩码"),
        "en": [
            "Four tokens a b c D, of which D is padding. X is 4 × 3, and three weight matrices of "
            "3 × 2 make Q, K and V of it. The scores are the same three times.",
            "Without a mask all weights are above 0. Under the padding mask column D is 0. Under the "
            "look-ahead mask the upper right is 0, and row a has a single weight of 1.",
        ],
        "zh": [
            "四个词元 a b c D，其中 D 是填充。X 是 4 × 3，"
            "三个 3 × 2 的权重矩阵把它变成 Q、K、V。三种情况下分数完全一样。",
            "不用掩码，所有权重都大于 0；用填充掩码，D 那一列为 0；"
            "用前瞻掩码，右上角为 0，a 那一行只有一个权重，就是 1。",
        ],
        "state": {
            "expression": "everything()",
            "text": "a b c <PAD>",
            "steps_view": "masks",
        },
        "look": (
            "The same row in the three tables: what is hidden goes to the others of its row.",
            "对照三张表里的同一行：被遮住的那份权重，分给了同一行的其他键。",
        ),
    },
    "minus-infinity": {
        "title": ("Why −1e9 and not 0", "为什么填 −1e9 而不是 0"),
        "en": [
            "Softmax turns a score s into e^s, and e^0 is 1, not 0. A hidden score of 0 is an "
            "ordinary score, and gets an ordinary weight.",
            "With −1e9 or −∞ in place of the third score, [1, 2, hidden, 3] becomes "
            "0.0900, 0.2447, 0, 0.6652: as if the third key were not there. Multiplying the weights "
            "by 0 after the softmax is no better, since the row no longer adds up to 1.",
        ],
        "zh": [
            "softmax 会把分数 s 变成 e^s，而 e^0 是 1，不是 0。"
            "把要遮住的分数填成 0，它就是一个普通的分数，照样分到权重。",
            "把第三个分数换成 −1e9 或 −∞，[1, 2, 遮住, 3] 的结果是 "
            "0.0900、0.2447、0、0.6652，就像第三个键不存在一样。"
            "在 softmax 之后再把权重乘 0 也不行，那样一行的和就不是 1 了。",
        ],
        "state": {
            "expression": "~keys([2])",
            "text": "a b c d",
            "scores": [[1, 2, 4, 3]] * 4,
            "fill": -1e9,
        },
        "look": (
            "The weights; then let hidden scores become 0, and see the third column wake up.",
            "看权重；再把“被遮住的分数改为”换成 0，第三列就又有权重了。",
        ),
    },
    "three-attentions": {
        "title": ("Encoder, decoder, cross-attention", "编码器、解码器、交叉注意力"),
        "en": [
            "A translation model has three attentions. The encoder reads the source: all real "
            "tokens see all real tokens, so it hides padding alone. The decoder writes the target: "
            "causal, and padding of the target.",
            "In cross-attention the queries are the target's and the keys are the source's. There "
            "is no future among the keys, so it hides the padding of the source, and nothing else. "
            "The mask is no square: 3 queries, 5 keys.",
        ],
        "zh": [
            "翻译模型里有三处注意力。编码器读原文：真实词元互相都能看到，只遮填充。"
            "解码器写译文：既是因果的，又要遮译文的填充。",
            "交叉注意力里，查询来自译文，键来自原文。键里没有“未来”可言，"
            "所以只遮原文的填充。这时掩码不是方的：3 个查询，5 个键。",
        ],
        "state": {
            "expression": "padding(lengths=[4])",
            "size": 3,
            "keys": 5,
            "q_start": 0,
            "panel": "compare",
            "others": ["everything()"],
        },
        "look": (
            "Only the last column is hidden, the same for all three queries.",
            "只有最后一列被遮住，三个查询都一样。",
        ),
    },
    "scale": {
        "title": ("Why divide by √head_size", "为什么要除以 √头维度"),
        "en": [
            "A score is a sum of head_size products. With numbers of variance 1, the sum has a "
            "variance of head_size: the larger the head, the further scores lie apart.",
            "Softmax of scores that lie far apart is nearly 1 for one key and 0 for the rest, and "
            "its gradient all but vanishes. Divided by √head_size the variance is 1 again, however "
            "large the head.",
        ],
        "zh": [
            "一个分数是 head_size 个乘积之和。如果每个数的方差是 1，"
            "这个和的方差就是 head_size：头越大，分数差得越开。",
            "分数差得太开，softmax 几乎把全部权重给一个键，其余接近 0，梯度也几乎消失。"
            "除以 √head_size 后，不管头多大，方差都回到 1。",
        ],
        "state": {"text": "I like green tea", "steps_view": "scaling"},
        "look": (
            "The variance grows with the head size; scaled it stays near 1. So does the sharpness.",
            "方差随头维度增长；缩放后一直在 1 附近，最大权重也不再变得尖锐。",
        ),
    },
    "shapes": {
        "title": ("The shapes on the way", "一路上的形状"),
        "en": [
            "A batch enters as (B, T, C): sentences, tokens, numbers of a token. Each head makes Q, "
            "K and V of it, (B, T, hs).",
            "Q times K turned over is (B, T, T): a score for every query and key. This is where the "
            "mask belongs. The weights times V are (B, T, hs) again, and the heads side by side give "
            "back (B, T, C).",
        ],
        "zh": [
            "一批数据进来时是 (B, T, C)：句子数、词元数、每个词元的维度。"
            "每个头把它变成 Q、K、V，形状是 (B, T, hs)。",
            "Q 乘以 K 的转置得到 (B, T, T)：每个查询对每个键一个分数，掩码就用在这里。"
            "权重再乘 V 又回到 (B, T, hs)，各个头拼起来就恢复成 (B, T, C)。",
        ],
        "state": {"text": "I like green tea", "width": 4, "head_size": 2},
        "look": (
            "The shape beside every step, here for one sentence and one head.",
            "看每一步旁边的形状，这里是一个句子、一个头。",
        ),
    },
    "patterns": {
        "title": (
            "Windows, documents, prefixes, sinks, trees",
            "窗口、文档、前缀、锚点与树",
        ),
        "en": [
            "Every head here has another mask. Head 0 sees a window of the last three tokens. Head 1 "
            "has two documents packed into one sequence, which do not see each other.",
            "Head 2 has a prefix that all see in both directions, as a question before its answer. "
            "Head 3 keeps the first two tokens in view beside its window: attention sinks. Head 4 "
            "is a tree of drafts, where each token sees its own branch alone.",
        ],
        "zh": [
            "这里每个头用不同的掩码。头 0 只看最近三个词元的窗口；"
            "头 1 把两篇文档拼进同一个序列，彼此看不到。",
            "头 2 有一段大家双向可见的前缀，就像答案前面的问题；"
            "头 3 除了窗口，还始终看得到最前面的两个词元（注意力锚点）；"
            "头 4 是一棵草稿树，每个词元只看得到自己这一支。",
        ],
        "state": {
            "expression": "by_head([window(back=2), causal() & documents(lengths=[[4, 4]]), "
            "causal() | prefix(3), causal() & (window(back=1) | keys(range(2))), "
            "tree([-1, 0, 0, 1, 1, 2, 2, 3])])",
            "panel": "compare",
            "others": ["causal()"],
        },
        "look": (
            "Go through the heads, and compare each with the plain causal mask.",
            "逐个切换头，与普通的因果掩码比较。",
        ),
    },
    "one-pass": {
        "title": ("One pass equals step by step", "一次算完与逐步生成结果相同"),
        "en": [
            "A model writes one token after another, and each step sees only what is there by then. "
            "Training would be slow that way.",
            "Under a causal mask row t of one pass sees exactly the tokens that step t would have "
            "had. So both compute the same numbers, and one pass trains all steps at once.",
            "Under a mask that shows later tokens this is no longer so: try everything().",
        ],
        "zh": [
            "模型写作时一次写一个词元，每一步只看得到已经写出的内容。要是训练也这样，就太慢了。",
            "有了因果掩码，一次前向中的第 t 行看到的词元，正好就是第 t 步能看到的词元。"
            "两边算出的数相同，所以一次前向就能同时训练所有步。",
            "如果掩码让后面的词元露出来，就不再成立了：换成 everything() 试试。",
        ],
        "state": {"text": "how are you today", "panel": "generate"},
        "look": (
            "Every row says that both are equal; with everything() only the last one does.",
            "每一行都显示两者相等；换成 everything() 后，只有最后一行相等。",
        ),
    },
}
