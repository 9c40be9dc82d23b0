"""BERT's published `create_pretraining_data.py`, as literally as possible with its random draws as arguments."""


def create_instances_from_document(all_documents, document_index, max_seq_length, draw):
    """Yield (first segment, segments, target length, tokens_a, tokens_b, is_random_next) of each instance."""
    document = all_documents[document_index]
    max_num_tokens = max_seq_length - 3
    target_seq_length = draw.target(max_num_tokens)
    current_chunk = []
    current_length = 0
    i = 0
    while i < len(document):
        segment = document[i]
        current_chunk.append(segment)
        current_length += len(segment)
        if i == len(document) - 1 or current_length >= target_seq_length:
            if current_chunk:
                first = i + 1 - len(current_chunk)
                a_end, tokens_a, tokens_b, is_random_next = make_pair(
                    all_documents, document_index, current_chunk, target_seq_length, max_num_tokens, draw
                )
                if is_random_next:
                    num_unused_segments = len(current_chunk) - a_end
                    i -= num_unused_segments
                yield first, len(current_chunk), target_seq_length, tokens_a, tokens_b, is_random_next
            current_chunk = []
            current_length = 0
            draw.next_chunk()
        i += 1


def make_pair(all_documents, document_index, current_chunk, target_seq_length, max_num_tokens, draw):
    """Return (a_end, tokens_a, tokens_b, is_random_next); this is the middle of `create_instances_from_document`."""
    a_end = 1
    if len(current_chunk) >= 2:
        a_end = draw.split(len(current_chunk) - 1)

    tokens_a = []
    for j in range(a_end):
        tokens_a.extend(current_chunk[j])

    tokens_b = []
    if len(current_chunk) == 1 or draw.is_random():
        is_random_next = True
        target_b_length = target_seq_length - len(tokens_a)
        random_document = all_documents[draw.document(document_index)]
        random_start = draw.start(len(random_document))
        for j in range(random_start, len(random_document)):
            tokens_b.extend(random_document[j])
            if len(tokens_b) >= target_b_length:
                break
    else:
        is_random_next = False
        for j in range(a_end, len(current_chunk)):
            tokens_b.extend(current_chunk[j])
        # ALBERT's script does this to pairs that are not random.
        if draw.is_swapped():
            tokens_a, tokens_b = tokens_b, tokens_a

    truncate_seq_pair(tokens_a, tokens_b, max_num_tokens, draw.cut_front)
    return a_end, tokens_a, tokens_b, is_random_next


def truncate_seq_pair(tokens_a, tokens_b, max_num_tokens, cut_front):
    """Truncate a pair; `cut_front(is it A, length of A, length of B, room)` replaces the script's `rng.random() < 0.5`."""
    while True:
        total_length = len(tokens_a) + len(tokens_b)
        if total_length <= max_num_tokens:
            break
        trunc_tokens = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        assert len(trunc_tokens) >= 1
        if cut_front(trunc_tokens is tokens_a, len(tokens_a), len(tokens_b), max_num_tokens):
            del trunc_tokens[0]
        else:
            trunc_tokens.pop()
